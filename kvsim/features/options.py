"""The options of all features of the scheduler, for the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, create_model

from kvsim.dispatch import FEATURES
from kvsim.features.feature import options_of

if TYPE_CHECKING:

    class FeatureOptions(BaseModel):
        """The options of the scheduler's features."""

else:
    FeatureOptions = create_model(
        "FeatureOptions",
        __config__=ConfigDict(defer_build=True),
        **options_of(FEATURES.all()),
    )
