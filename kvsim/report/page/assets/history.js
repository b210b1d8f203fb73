// From events to the state of every block over time: intervals by block, in order of time.

const [ALLOC, HIT, REF_ADD, REF_DROP, FREE, STORE, EVICT, PREEMPT, ADMIT, RECV, SEND, LOAD, COPY] =
  Array.from({ length: 13 }, (_, k) => k);
const EVENT_NAMES = [
  "allocates", "hits", "shares", "releases", "frees", "gets a key", "loses its key",
  "is preempted", "is admitted", "waits for KV", "keeps its blocks until they are read",
  "is loaded from the host", "is copied to the host",
];
const [S_FREE, S_RUNNING, S_SHARED, S_CACHED, S_TRANSFER, S_HOST_COPY] = [0, 1, 2, 3, 4, 5];

class Stretches {
  constructor() {
    this.start = [];
    this.end = [];
    this.request = [];
    this.refs = [];
    this.state = [];
    this.born = [];
    this.key = [];
  }

  /** Return the stretch that holds a time, or -1. */
  at(time) {
    const k = this.after(time) - 1;
    return k >= 0 && this.end[k] > time ? k : -1;
  }

  /** Return the first stretch that begins after a time. */
  after(time) {
    let low = 0;
    let high = this.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

class History {
  constructor(events, numBlocks, end) {
    this.events = events;
    this.blocks = Array.from({ length: numBlocks }, () => new Stretches());
    const now = Array.from({ length: numBlocks }, () => ({ holders: [], key: -1, since: 0, born: 0, copied: false }));
    const waits = new Set();
    const held = new Map();
    const close = (block, time) => {
      const one = now[block];
      if (time > one.since && (one.holders.length || one.key >= 0)) {
        const line = this.blocks[block];
        const owner = one.holders.length ? one.holders[0] : -1;
        let state = one.holders.length > 1 ? S_SHARED : S_RUNNING;
        if (owner < 0) state = one.copied ? S_HOST_COPY : S_CACHED;
        else if (waits.has(owner)) state = S_TRANSFER;
        line.start.push(one.since);
        line.end.push(time);
        line.request.push(owner);
        line.refs.push(one.holders.length);
        line.state.push(state);
        line.born.push(one.born);
        line.key.push(one.key);
      }
      one.since = time;
    };
    for (let k = 0; k < events.count; k++) {
      const kind = events.kind[k];
      const time = events.time[k];
      const block = events.block[k];
      const request = events.request[k];
      if (block < 0) {
        const begins = kind === RECV || kind === SEND;
        if (!begins && !waits.has(request)) continue;
        for (const one of held.get(request) || []) close(one, time);
        if (begins) waits.add(request);
        else waits.delete(request);
        continue;
      }
      close(block, time);
      const one = now[block];
      if (kind <= REF_ADD) {
        if (kind === ALLOC) Object.assign(one, { born: time, copied: false });
        one.holders.push(request);
        if (!held.has(request)) held.set(request, new Set());
        held.get(request).add(block);
      } else if (kind <= FREE) {
        one.holders.splice(one.holders.indexOf(request), 1);
        if (!one.holders.includes(request)) held.get(request).delete(block);
      } else if (kind === LOAD || kind === COPY) {
        one.copied = true;
      } else {
        one.key = kind === STORE ? events.key[k] : -1;
        one.copied &&= kind === STORE;
      }
    }
    for (let block = 0; block < numBlocks; block++) close(block, end);
  }

  /** Return the index of the first event after a time. */
  after(time) {
    let low = 0;
    let high = this.events.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.events.time[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Count blocks in use, cached and free at a time; block 0 is never handed out. */
  counts(time) {
    let used = 0;
    let cached = 0;
    for (const line of this.blocks) {
      const k = line.at(time);
      if (k < 0) continue;
      if (line.refs[k]) used++;
      else cached++;
    }
    return { used, cached, free: this.blocks.length - 1 - used - cached };
  }

  /** Return the block table of a request at a time: place, block, whether hit, who else holds it. */
  table(request, time) {
    const entries = new Map();
    const { events } = this;
    for (let k = 0; k < events.count && events.time[k] <= time; k++) {
      if (events.request[k] !== request || events.block[k] < 0) continue;
      const kind = events.kind[k];
      if (kind <= REF_ADD) entries.set(events.place[k], { block: events.block[k], kind, since: events.time[k] });
      else if (kind <= FREE) entries.delete(events.place[k]);
    }
    return [...entries.entries()].sort((a, b) => a[0] - b[0]).map(([place, one]) => {
      const line = this.blocks[one.block];
      const k = line.at(time);
      return { place, ...one, refs: k < 0 ? 0 : line.refs[k] };
    });
  }

  /** Return when a request held anything: first and last time, or null. */
  span(request) {
    let first = -1;
    let last = -1;
    for (let k = 0; k < this.events.count; k++) {
      if (this.events.request[k] !== request) continue;
      if (first < 0) first = k;
      last = k;
    }
    return first < 0 ? null : [this.events.time[first], this.events.time[last]];
  }
}
