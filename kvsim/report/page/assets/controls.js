// Input of the explorer: pointer, wheel, keyboard, fields.

function wire(explorer) {
  const { root, find } = explorer;
  const map = find("map");
  let from = null;
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    from = { x: event.clientX, y: event.clientY, moved: false };
  });
  map.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
    if (!from.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
    explorer.pan(-dx / map.clientWidth, dy / map.clientHeight);
    from = { x: event.clientX, y: event.clientY, moved: true };
  });
  map.addEventListener("pointerup", (event) => {
    const clicked = from && !from.moved;
    from = null;
    if (!clicked) return;
    const { time, block } = explorer.under(event);
    explorer.moveTo(time);
    const line = explorer.view.history && explorer.view.history.blocks[block];
    const k = line ? line.at(time) : -1;
    explorer.choose(k < 0 ? -1 : line.request[k]);
  });
  map.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && document.activeElement !== map) return; // the page scrolls on
      event.preventDefault();
      const { x, y } = explorer.under(event);
      explorer.zoom(Math.exp(event.deltaY / 500), x, event.shiftKey ? 1 - y : null);
    },
    { passive: false },
  );
  find("stack").addEventListener("pointerdown", (event) => explorer.moveTo(explorer.under(event).time));
  find("blocks").closest(".scroll").addEventListener("scroll", () => explorer.arrows());
  find("pool").addEventListener("pointerdown", (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const scale = event.currentTarget.width / box.width;
    const { across, size } = explorer.grid;
    const column = Math.floor(((event.clientX - box.left) * scale) / size);
    const block = Math.floor(((event.clientY - box.top) * scale) / size) * across + column;
    const line = explorer.view.history.blocks[block];
    const k = line ? line.at(explorer.time) : -1;
    explorer.choose(k < 0 ? -1 : line.request[k]);
  });
  find("fleet").addEventListener("pointerdown", (event) => {
    const { replicas } = explorer.view.fleet;
    const row = Math.floor(explorer.under(event).y * replicas.length);
    const views = explorer.data.views;
    const index = views.findIndex((one) => one.run === explorer.view.run && one.replica === replicas[row]);
    if (index < 0) return explorer.say(`Replica ${replicas[row]} is not in this page.`);
    find("run").value = String(index);
    return explorer.open(index).then(() => explorer.showTree());
  });
  find("when").addEventListener("input", (event) =>
    explorer.moveTo((event.target.value / 1000) * explorer.window.duration),
  );
  find("mode").addEventListener("change", () => {
    explorer.legend();
    explorer.draw();
  });
  find("run").addEventListener("change", (event) =>
    explorer.open(Number(event.target.value)).then(() => explorer.showTree()),
  );
  find("request").addEventListener("change", (event) => {
    const text = event.target.value.trim();
    const request = text === "" ? -1 : Number(text);
    const span = Number.isInteger(request) && explorer.view.history ? explorer.view.history.span(request) : null;
    if (request >= 0 && !span) return explorer.say(`Request ${text} holds no block in this page.`);
    if (span) {
      const room = (span[1] - span[0]) * 0.5 + 1;
      explorer.frame(span[0] - room, span[1] + room);
      explorer.moveTo((span[0] + span[1]) / 2);
    }
    return explorer.choose(request);
  });
  const actions = {
    previous: () => explorer.step(-1),
    next: () => explorer.step(1),
    "zoom-in": () => explorer.zoom(0.5),
    "zoom-out": () => explorer.zoom(2),
    all: () => {
      Object.assign(explorer.window, { b0: 0, b1: explorer.window.rows });
      explorer.frame(0, explorer.window.duration);
    },
  };
  for (const [name, act] of Object.entries(actions)) find(name).addEventListener("click", act);
  const keys = {
    j: actions.next,
    k: actions.previous,
    "+": actions["zoom-in"],
    "=": actions["zoom-in"],
    "-": actions["zoom-out"],
    0: actions.all,
    "/": () => find("request").focus(),
    ArrowLeft: () => explorer.pan(-0.1),
    ArrowRight: () => explorer.pan(0.1),
    ArrowUp: () => explorer.pan(0, 0.1),
    ArrowDown: () => explorer.pan(0, -0.1),
    Escape: () => {
      find("request").value = "";
      explorer.choose(-1);
      map.focus();
    },
  };
  root.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing && event.key !== "Escape") return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
    event.preventDefault();
    find("request").focus();
  });
  const redraw = () => {
    if (!explorer.window) return; // nothing is open yet
    explorer.colours();
    explorer.draw();
  };
  new ResizeObserver(redraw).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

const place = document.getElementById("explorer");
if (place) {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const explorer = new Explorer(place, data);
  window.kvsim = { explorer };
  const runs = explorer.find("run");
  data.views.forEach((view, index) => runs.append(new Option(view.name, String(index))));
  const first = Math.max(0, data.views.findIndex((view) => view.events));
  runs.value = String(first);
  wire(explorer);
  explorer.open(first).then(() => {
    explorer.showTree();
    place.dataset.ready = "yes";
  });
}
