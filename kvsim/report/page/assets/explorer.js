// The memory-map explorer: one state, and views that are drawn from it.

class Explorer {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.rasters = Object.fromEntries(
      ["map", "stack", "pool", "fleet"].map((name) => [name, new Raster(this.find(name))]),
    );
    this.chosen = -1; // request
    this.node = -1; // of the prefix tree
    this.drawn = 0; // frames, for who measures
  }

  async open(index) {
    const view = this.data.views[index];
    this.view = view;
    if (!view.ready) {
      view.samples = await unpackAll(view.samples);
      if (view.map) {
        view.map.causes = await inflate(view.map.causes);
        view.map.time = await unpackInts(view.map.time);
      }
      if (view.events) {
        const kind = await inflate(view.events.kind);
        view.events = { ...(await unpackAll({ ...view.events, kind: "" })), kind };
        view.history = new History(view.events, view.numBlocks, view.duration);
      }
      const first = this.data.views.find((one) => one.run === view.run);
      if (!first.shared) {
        first.shared = first.requests ? await unpackAll(first.requests) : null;
        if (first.fleet) first.fleet.use = await inflate(first.fleet.use);
        if (first.tree) first.tree.nodeOf = await unpackInts(first.tree.nodeOf);
      }
      Object.assign(view, { facts: first.shared, fleet: first.fleet, tree: first.tree, ready: true });
    }
    const rows = view.history ? view.numBlocks : view.map ? view.map.bins : 1;
    this.window = { t0: 0, t1: view.duration || 1, b0: 0, b1: rows, rows, duration: view.duration || 1 };
    this.time = (view.duration || 1) * 0.5;
    this.at = -1;
    this.chosen = this.node = -1;
    const modes = this.find("mode");
    for (const option of modes.options) {
      option.disabled = option.value === "cause" ? !view.map : !view.history;
      if (option.value === "tenant") option.disabled ||= !view.facts || !view.facts.tenant;
    }
    const kept = this.opened && !modes.selectedOptions[0].disabled;
    if (!kept) modes.value = view.history ? "state" : "cause";
    this.opened = true;
    this.find("fleet").hidden = this.find("fleet-title").hidden = !view.fleet;
    this.find("tree-part").hidden = !view.tree;
    for (const part of root_only_with_history) this.find(part).hidden = !view.history;
    this.totals();
    this.showTable();
    this.colours();
    this.draw();
    this.say(`${view.name}: ${this.range()}`);
  }

  colours() {
    const { palette } = this.data;
    this.back = pixel(css("--back"));
    this.causes = Object.fromEntries(Object.entries(palette).map(([name, hex]) => [name, pixel(hex)]));
    this.byCode = this.data.codes.map((name) => this.causes[name]);
    this.causes.free = this.byCode[0] = fade(pixel(css("--ink")), this.back, 0.93);
    this.requestColours = REQUESTS.map((hex) => pixel(hex));
    this.states = [
      this.byCode[0], this.causes.token_states, pixel("#7B3294"), this.causes.cached, this.causes.internal,
      pixel("#9AD14B"),
    ];
    this.shades = shades(this.back);
    this.mark = pixel(css("--mark"));
    this.ink = css("--ink");
    this.legend();
  }

  /** Return what paints a stretch in the mode that is chosen. */
  painter() {
    const mode = this.find("mode").value;
    const { facts, tree } = this.view;
    const plain = {
      cause: (line, k) => this.states[line.state[k]],
      state: (line, k) => this.states[line.state[k]],
      request: (line, k) =>
        line.request[k] < 0 ? this.causes.cached : this.requestColours[line.request[k] % REQUESTS.length],
      tenant: (line, k) => {
        const tenant = facts && facts.tenant ? facts.tenant[line.request[k]] : 0;
        if (line.request[k] < 0) return this.causes.cached;
        return tenant < 0 ? this.states[1] : this.requestColours[tenant % REQUESTS.length];
      },
      age: (line, k) => (time) =>
        this.shades[Math.min(255, Math.max(0, Math.floor((255 * (time - line.born[k])) / this.oldest())))],
    }[mode];
    if (this.chosen >= 0) {
      const holds = this.holdings();
      return (line, k, block) => {
        const found = plain(line, k);
        const colour = typeof found === "number" ? found : found(line.start[k]);
        const own = holds.get(block);
        if (own && own.some(([from, to]) => from < line.end[k] && to > line.start[k])) return this.mark;
        return fade(colour, this.back, 0.72);
      };
    }
    if (this.node >= 0 && tree) {
      return (line, k) => {
        const own = line.key[k] >= 0 && tree.nodeOf[line.key[k]] === this.node;
        return own ? this.mark : fade(this.states[line.state[k]], this.back, 0.72);
      };
    }
    return plain;
  }

  oldest() {
    return Math.max(1, this.view.duration / 4);
  }

  /** Return the intervals in which the chosen request held each block. */
  holdings() {
    if (this.heldBy === this.chosen && this.heldIn === this.view) return this.held;
    const held = new Map();
    const open = new Map();
    const { events } = this.view;
    for (let k = 0; k < events.count; k++) {
      if (events.request[k] !== this.chosen || events.block[k] < 0) continue;
      const block = events.block[k];
      if (events.kind[k] <= REF_ADD) {
        open.set(block, events.time[k]);
      } else if (events.kind[k] <= FREE && open.has(block)) {
        if (!held.has(block)) held.set(block, []);
        held.get(block).push([open.get(block), events.time[k]]);
        open.delete(block);
      }
    }
    for (const [block, time] of open) held.set(block, [...(held.get(block) || []), [time, Infinity]]);
    [this.held, this.heldBy, this.heldIn] = [held, this.chosen, this.view];
    return held;
  }

  /** Draw all in the next frame, once. */
  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.paint();
      this.drawn++;
    });
  }

  paint() {
    const { view, window: seen } = this;
    const { map, stack, pool, fleet } = this.rasters;
    const causes = this.find("mode").value === "cause" && view.map && this.chosen < 0 && this.node < 0;
    if (causes || !view.history) map.causes(view.map, seen, this.byCode, this.back);
    else map.blocks(view.history, seen, this.painter(), this.byCode[0]);
    map.mark(this.time, seen, this.ink);
    drawStack(stack, view.samples, seen, this.causes, this.back);
    stack.mark(this.time, seen, this.ink);
    if (view.history) this.grid = drawPool(pool, view.history, this.time, this.painter(), this.byCode[0]);
    this.arrows();
    if (view.fleet) drawFleet(fleet, view.fleet, seen, this.back);
    this.find("when").value = String(Math.round((1000 * this.time) / seen.duration));
    this.find("range").textContent = this.range();
    this.find("axis").replaceChildren(
      ...[0, 1, 2, 3, 4].map((k) => {
        const tick = document.createElement("span");
        tick.textContent = seconds(seen.t0 + (k / 4) * (seen.t1 - seen.t0), seen.t1 - seen.t0);
        return tick;
      }),
    );
    this.find("now").textContent = this.instant();
    map.canvas.setAttribute("aria-label", `Memory of ${view.name}. ${this.range()}. ${this.instant()}`);
  }

  arrows() {
    const rows = this.view.history ? [...this.find("blocks").tBodies[0].rows] : [];
    drawArrows(this.find("arrows"), rows, this.find("pool"), this.grid);
  }

  range() {
    const { t0, t1, b0, b1 } = this.window;
    const rows = this.view.history ? `blocks ${Math.floor(b0)} to ${Math.ceil(b1) - 1}` : "all addresses";
    return `${seconds(t0)} to ${seconds(t1)}, ${rows}`;
  }

  instant() {
    const { history } = this.view;
    const queue = this.queue();
    if (!history) return `At ${seconds(this.time)}${queue && `: ${queue}`}.`;
    const { used, cached, free } = history.counts(this.time);
    const blocks = `${used} blocks in use, ${cached} cached and free, ${free} empty`;
    return `At ${seconds(this.time)}: ${blocks}${queue && `; ${queue}`}.`;
  }

  /** Return the numbers of requests at the instant; empty unless the page has all requests. */
  queue() {
    const { facts, replica } = this.view;
    if (!facts || !facts.complete) return "";
    let served = 0;
    let waiting = 0;
    for (let k = 0; k < facts.count; k++) {
      if (facts.replica[k] !== replica || facts.arrival_time[k] > this.time) continue;
      const end = facts.finish_time[k];
      if (end >= 0 && end <= this.time) continue;
      const begun = facts.first_scheduled_time[k];
      if (begun >= 0 && begun <= this.time) served++;
      else if (begun >= 0) waiting++;
    }
    return `${served} requests started and not ended, ${waiting} waiting to start`;
  }

  totals() {
    const { counts, history } = this.view;
    const shown = history
      ? `${counts.alloc.toLocaleString("en")} blocks allocated, ${counts.hit.toLocaleString("en")} hits, ` +
        `${counts.evict.toLocaleString("en")} evictions, ${counts.preempt.toLocaleString("en")} preemptions`
      : this.view.why;
    this.find("totals").textContent = shown;
  }

  legend() {
    const mode = this.find("mode").value;
    const { palette, labels } = this.data;
    const items = {
      cause: Object.keys(palette).map((name) => [labels[name], this.hex(this.causes[name])]),
      state: ["empty", "one request's", "shared", "cached and free", "in transfer",
        ...(this.view.counts.load + this.view.counts.copy ? ["cached and free, copied to the host"] : []),
      ].map((name, k) => [
        name, this.hex(this.states[k]),
      ]),
      request: [["a colour per request, used again after twelve", REQUESTS[0]], ["cached and free", palette.cached]],
      tenant: [["a colour per tenant", REQUESTS[0]], ["cached and free", palette.cached]],
      age: [["new content", this.hex(ramp(0, this.back))], [`${seconds(this.oldest())} old and older`, this.hex(ramp(1, this.back))]],
    }[mode];
    if (this.chosen >= 0) items.push([`request ${this.chosen}`, this.hex(this.mark)]);
    if (this.node >= 0) items.push(["the chosen prefix", this.hex(this.mark)]);
    const list = this.find("legend");
    list.replaceChildren(
      ...items.map(([text, colour]) => {
        const item = document.createElement("li");
        const swatch = document.createElement("span");
        swatch.className = "swatch";
        swatch.style.backgroundColor = colour;
        item.append(swatch, text);
        return item;
      }),
    );
  }

  hex(one) {
    return `rgb(${one & 255}, ${(one >> 8) & 255}, ${(one >> 16) & 255})`;
  }

  say(text) {
    this.find("said").textContent = text;
  }

  // -- choosing ----------------------------------------------------------------------------------

  choose(request) {
    this.chosen = request;
    this.node = -1;
    this.showTable();
    this.legend();
    this.draw();
    if (request < 0) return this.say("No request chosen.");
    const facts = this.view.facts;
    let text = `Request ${request}`;
    if (facts && request < facts.count) {
      text +=
        `: ${facts.num_prompt_tokens[request]} tokens in (${facts.num_cached_tokens[request]} cached), ` +
        `${facts.num_output_tokens[request]} out, arrives at ${seconds(facts.arrival_time[request])}, ` +
        `preempted ${facts.num_preemptions[request]} times`;
    }
    this.say(`${text}; ${this.holdings().size} blocks over its lifetime.`);
    return undefined;
  }

  chooseNode(node) {
    this.node = this.node === node ? -1 : node;
    this.chosen = -1;
    this.showTable();
    this.showTree();
    this.legend();
    this.draw();
    const { tree } = this.view;
    this.say(node < 0 ? "" : `Prefix of ${tree.tokens[node]} tokens: ${tree.hits[node]} hits.`);
  }

  showTree() {
    if (!this.view.tree) return;
    drawTree(this.find("tree"), this.view.tree, this.node, (node) => this.chooseNode(node));
    const { tree } = this.view;
    const left = tree.total - tree.parent.length;
    this.find("tree-note").textContent =
      `${tree.parent.length} prefixes` + (left ? `; ${left.toLocaleString("en")} with fewer hits or none are left out.` : ".");
  }

  showTable() {
    const body = this.find("blocks").tBodies[0];
    const title = this.find("blocks-title");
    body.replaceChildren();
    title.textContent = "Block table: click a request in the map, or press / and type its number.";
    if (this.chosen < 0 || !this.view.history) return;
    const rows = this.view.history.table(this.chosen, this.time);
    title.textContent = `Block table of request ${this.chosen} at ${seconds(this.time)}: ${rows.length} blocks`;
    for (const row of rows.slice(0, 400)) {
      const line = body.insertRow();
      const how = row.kind === HIT ? "hit" : row.kind === REF_ADD ? "shared" : "written";
      const shared = row.refs > 1 ? `${row.refs} sequences` : "";
      for (const text of [row.place, row.block, how, shared, seconds(row.since)]) {
        line.insertCell().textContent = String(text);
      }
      line.dataset.block = String(row.block);
      if (row.refs > 1) line.className = "shared";
    }
  }

  moveTo(time, { follow = true } = {}) {
    const { window: seen } = this;
    this.time = Math.min(seen.duration, Math.max(0, time));
    if (follow && (this.time < seen.t0 || this.time > seen.t1)) {
      const half = (seen.t1 - seen.t0) / 2;
      this.frame(this.time - half, this.time + half);
    }
    this.showTable();
    this.draw();
  }

  /** Go to the next or the previous event, of the chosen request if there is one. */
  step(by) {
    const { history } = this.view;
    if (!history) return;
    const { events } = history;
    let at = this.at >= 0 && events.time[this.at] === this.time ? this.at + by : history.after(this.time) - (by < 0 ? 1 : 0);
    while (at >= 0 && at < events.count && this.chosen >= 0 && events.request[at] !== this.chosen) at += by;
    if (at < 0 || at >= events.count) {
      this.say("No further event.");
      return;
    }
    this.at = at;
    this.moveTo(events.time[at]);
    const request = events.request[at];
    const block = events.block[at];
    const kind = events.kind[at];
    const what = request < 0 ? `Block ${block} ${EVENT_NAMES[kind]}` : `Request ${request} ${EVENT_NAMES[kind]}`;
    this.say(`${seconds(events.time[at])}: ${what}${request >= 0 && block >= 0 ? ` block ${block}` : ""}.`);
  }

  // -- coordinates -------------------------------------------------------------------------------

  frame(t0, t1) {
    const { duration } = this.window;
    const span = Math.min(duration, Math.max(10, t1 - t0));
    const start = Math.min(duration - span, Math.max(0, t0));
    Object.assign(this.window, { t0: start, t1: start + span });
    this.draw();
  }

  zoom(by, share = 0.5, rowShare = null) {
    const { t0, t1, b0, b1, rows } = this.window;
    if (rowShare !== null) {
      const count = Math.min(rows, Math.max(4, (b1 - b0) * by));
      const middle = b0 + (b1 - b0) * rowShare;
      const start = Math.min(rows - count, Math.max(0, middle - count * rowShare));
      Object.assign(this.window, { b0: start, b1: start + count });
      this.draw();
      return;
    }
    const middle = t0 + (t1 - t0) * share;
    this.frame(middle - (t1 - t0) * by * share, middle + (t1 - t0) * by * (1 - share));
  }

  pan(share, rowShare = 0) {
    const { t0, t1, b0, b1, rows } = this.window;
    const by = Math.min(rows - b1, Math.max(-b0, (b1 - b0) * rowShare));
    Object.assign(this.window, { b0: b0 + by, b1: b1 + by });
    this.frame(t0 + (t1 - t0) * share, t1 + (t1 - t0) * share);
  }

  /** Return time, block and stretch under a pointer. */
  under(event) {
    const box = event.currentTarget.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width;
    const y = (event.clientY - box.top) / box.height;
    const { t0, t1, b0, b1 } = this.window;
    return { x, y, time: t0 + x * (t1 - t0), block: Math.floor(b0 + (1 - y) * (b1 - b0)) };
  }
}

const root_only_with_history = ["pool", "pool-title", "blocks-part"];

/** Microseconds as seconds: to the millisecond, or finer if the shown interval is short. */
function seconds(microseconds, span = 1e7) {
  const digits = Math.min(6, Math.max(1, 10 - Math.ceil(Math.log10(span))));
  return `${(microseconds / 1e6).toLocaleString("en", { maximumFractionDigits: digits })} s`;
}
