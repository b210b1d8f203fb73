// Address by time: a pixel row is a block (or an address), a pixel column an instant.

class Raster {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
  }

  /** Fit the canvas to its place, in device pixels; return its size. */
  fit() {
    const scale = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(this.canvas.clientWidth * scale));
    const height = Math.max(1, Math.round(this.canvas.clientHeight * scale));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.image = null;
    }
    if (!this.image) {
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    return [width, height];
  }

  /** Draw blocks by stretches: paint(line, k, block) gives a colour, or null for the age's ramp. */
  blocks(history, view, paint, background) {
    const [width, height] = this.fit();
    const { pixels } = this;
    pixels.fill(background);
    const span = view.t1 - view.t0;
    const rows = view.b1 - view.b0;
    for (let y = 0; y < height; y++) {
      const block = Math.floor(view.b0 + ((height - 1 - y + 0.5) / height) * rows);
      const line = history.blocks[block];
      if (!line) continue;
      const offset = y * width;
      let k = Math.max(0, line.after(view.t0) - 1);
      for (; k < line.start.length && line.start[k] < view.t1; k++) {
        const from = Math.max(0, Math.floor(((line.start[k] - view.t0) / span) * width));
        const to = Math.min(width, Math.ceil(((line.end[k] - view.t0) / span) * width));
        if (to <= from) continue;
        const colour = paint(line, k, block);
        if (typeof colour === "number") {
          pixels.fill(colour, offset + from, offset + to);
        } else {
          for (let x = from; x < to; x++) pixels[offset + x] = colour(view.t0 + (x / width) * span);
        }
      }
    }
    this.context.putImageData(this.image, 0, 0);
  }

  /** Draw causes by address from samples. */
  causes(map, view, palette, background) {
    const [width, height] = this.fit();
    const { pixels } = this;
    pixels.fill(background);
    const columns = new Int32Array(width);
    for (let x = 0, k = 0; x < width; x++) {
      const time = view.t0 + ((x + 0.5) / width) * (view.t1 - view.t0);
      while (k + 1 < map.columns && map.time[k + 1] <= time) k++;
      columns[x] = map.time[k] <= time ? k : -1;
    }
    for (let y = 0; y < height; y++) {
      const share = (view.b0 + ((height - 1 - y + 0.5) / height) * (view.b1 - view.b0)) / view.rows;
      const bin = Math.min(map.bins - 1, Math.max(0, Math.floor(share * map.bins))) * map.columns;
      const offset = y * width;
      for (let x = 0; x < width; x++) {
        if (columns[x] >= 0) pixels[offset + x] = palette[map.causes[bin + columns[x]]];
      }
    }
    this.context.putImageData(this.image, 0, 0);
  }

  /** Mark the chosen instant. */
  mark(time, view, colour) {
    const x = ((time - view.t0) / (view.t1 - view.t0)) * this.canvas.width;
    this.context.fillStyle = colour;
    this.context.fillRect(Math.round(x) - 1, 0, 2, this.canvas.height);
  }
}
