// One palette for causes, states and requests; as pixels of a canvas.

const REQUESTS = [
  "#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77",
  "#CC6677", "#882255", "#AA4499", "#6699CC", "#EE8866", "#225555",
];

/** A colour as a pixel of a little-endian canvas. */
function pixel(hex, alpha = 255) {
  const value = parseInt(hex.slice(1), 16);
  return ((alpha << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** A colour nearer to the background, for what is not chosen. */
function fade(one, background, share = 0.8) {
  const mix = (shift) =>
    Math.round(((one >> shift) & 255) * (1 - share) + ((background >> shift) & 255) * share) << shift;
  return ((255 << 24) | mix(16) | mix(8) | mix(0)) >>> 0;
}

/** From the strongest colour at 0 to nearly the background at 1: the same order in grey. */
function ramp(share, background) {
  return fade(pixel(css("--deep")), background, 0.05 + 0.8 * Math.min(1, Math.max(0, share)));
}

/** The same for many pixels: 256 shades, made once. */
function shades(background) {
  return Uint32Array.from({ length: 256 }, (_, k) => ramp(k / 255, background));
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
