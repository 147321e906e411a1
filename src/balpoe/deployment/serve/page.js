// The page of balpoe serve: an image, a prior, the answers, and the class mix of late. Nothing leaves for elsewhere.
"use strict";
(() => {
  const RATIOS = [1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.5, 8, 10, 13, 16, 20, 25, 32, 40, 50, 65, 80, 100];
  const TOP = 5;
  const WAIT = 120;  // milliseconds after the slider's last move
  const DRIFT_EVERY = 30000;
  const at = (id) => document.getElementById(id);
  let model = null, token = "", image = null, url = "", timer = 0, running = null;

  const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;

  function say(text, wrong = false) {
    at("status").textContent = text;
    at("status").className = wrong ? "wrong" : "";
  }

  async function call(path, options = {}) {
    const headers = { ...options.headers };
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await fetch(path, { ...options, headers });
    const content = await response.json().catch(() => ({ error: "the server's answer is not understood" }));
    if (response.status === 401) at("token-form").hidden = false;
    if (!response.ok) throw new Error(content.error || "the server refused the request");
    return content;
  }

  async function begin() {
    try {
      model = await call("model");
    } catch (error) {
      at("about").textContent = `The model cannot be asked: ${error.message}.`;
      at("result").hidden = true;
      if (!at("token-form").hidden) at("token").focus();
      return;
    }
    at("token-form").hidden = true;
    const images = model.takes === "images";
    const what = images ? "an image" : `${model.size[0]} numbers`;
    at("about").textContent = `It knows ${model.classes.length} classes, asks ${model.experts} ` +
      `expert${model.experts > 1 ? "s" : ""}, and takes ${what}.`;
    at("ask").hidden = false;
    at("images").hidden = !images;
    at("features").hidden = images;
    at("prior").hidden = !model.adjusts_to_priors;
    at("result").hidden = false;
    at("assumed-name").textContent = model.prior.assumed;
    showPlaces();
    markPrior();
    nameSlider();
    drift();
  }

  function showPlaces() {
    if (!model.table || !model.table.places.length) return;
    at("place-line").hidden = false;
    at("place").append(new Option("(choose)", ""));
    model.table.places.forEach((keys, number) => at("place").append(new Option(keys.join(" / "), number)));
  }

  function sliderPrior() {
    const step = Number(at("slider").value);
    return step === 0 ? "uniform" : `${step < 0 ? "forward" : "backward"}-${RATIOS[Math.abs(step)]}`;
  }

  function nameSlider() {
    const step = Number(at("slider").value), ratio = RATIOS[Math.abs(step)];
    const [more, less] = step < 0 ? ["most common", "rarest"] : ["rarest", "most common"];
    const words = step === 0 ? "all classes alike" :
      `the ${more} class of training is now ${ratio} times as frequent as the ${less}`;
    at("slider-name").textContent = words;
    at("slider").setAttribute("aria-valuetext", words);
  }

  function markPrior() {
    at("prior").classList.toggle("by-server", at("assumed").checked || at("place").value !== "");
  }

  function chosenPrior() {
    if (at("assumed").checked) return null;
    if (at("place").value !== "") return model.table.places[Number(at("place").value)];
    return sliderPrior();
  }

  function request() {
    const prior = chosenPrior(), top = Math.min(TOP, model.classes.length);
    if (model.takes === "features") {
      const features = [at("row").value.split(/[\s,;]+/).filter(Boolean).map(Number)];
      const fields = { features, top_k: top, experts: true, ...(prior === null ? {} : { prior }) };
      return { method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } };
    }
    const form = new FormData();
    form.append("images", image, "image");
    form.append("top_k", String(top));
    form.append("experts", "true");
    if (prior !== null) form.append("prior", typeof prior === "string" ? prior : JSON.stringify(prior));
    return { method: "POST", body: form };
  }

  async function ask() {
    clearTimeout(timer);
    markPrior();
    if (model.takes === "images" ? !image : !at("row").value.trim()) return;
    if (running) running.abort();
    const mine = running = new AbortController();
    at("nothing").hidden = true;
    at("answer").classList.add("waits");
    say("Asking …");
    try {
      const found = await call("predict", { ...request(), signal: mine.signal });
      if (mine === running) show(found);
    } catch (error) {
      if (mine !== running) return;  // a later question is on its way
      at("answer").hidden = true;
      say(`${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`, true);
    }
  }

  function bar(share, ...words) {
    const item = document.createElement("li"), back = document.createElement("progress");
    back.max = 1;
    back.value = share;
    back.setAttribute("aria-hidden", "true");
    item.append(back, ...[...words, ["share", percent(share)]].map(([kind, text]) => {
      const span = document.createElement("span");
      span.className = kind;
      span.textContent = text;
      return span;
    }));
    return item;
  }

  function show(found) {
    const answer = found.answers[0];
    say(`${answer.label}: ${percent(answer.probability)} (prior: ${found.prior}).`);
    at("answer").hidden = false;
    at("answer").classList.remove("waits");
    at("top").replaceChildren(...answer.top.map((each) => bar(each.probability, ["name", each.label])));
    at("experts").replaceChildren(...answer.experts.map((each, number) =>
      bar(each.probability, ["who", `Expert ${number + 1}`], ["name", each.label])));
    at("notes").replaceChildren(...found.notes.map((note) => {
      const item = document.createElement("li");
      item.textContent = note;
      return item;
    }));
    drift();
  }

  async function drift() {
    let found;
    try {
      found = await call("drift");
    } catch {
      return;  // the answers are what one came for
    }
    at("drift").hidden = false;
    at("drift-sentence").textContent = found.sentence;
    at("drift-scroll").hidden = !found.classes.length;
    const [kind, words] = driftState(found);
    at("drift-state").className = kind;
    at("drift-state").textContent = words;
    at("drift-caption").textContent = `Largest differences, in per cent, of the latest ${found.samples} samples`;
    const shown = found.classes.slice(0, 10);
    const most = 1.02 * Math.max(...shown.flatMap((each) => [each.assumed, each.high]));
    at("drift-rows").replaceChildren(...shown.map((each) => driftRow(each, most)));
  }

  function driftState(found) {
    if (found.explained === false) return ["bad", "the samples have changed"];
    if (found.differs === null) return ["", "no estimate yet"];
    return found.differs ? ["warn", "another than assumed"] : ["good", "as assumed"];
  }

  function driftRow(each, most) {
    const row = document.createElement("tr"), name = document.createElement("th");
    name.scope = "row";
    name.textContent = each.label;
    row.append(name);
    const chart = row.insertCell();
    chart.className = "chart";
    chart.setAttribute("aria-hidden", "true");
    chart.append(driftChart(each, most));
    const [assumed, estimated, low, high] = [each.assumed, each.estimated, each.low, each.high].map(
      (share) => (100 * share).toFixed(1));
    for (const text of [assumed, estimated, `${low} to ${high}`]) row.insertCell().textContent = text;
    return row;
  }

  function driftChart(each, most) {
    const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 100 10");
    svg.setAttribute("preserveAspectRatio", "none");
    const at100 = (share) => 100 * share / most;
    const marks = [
      ["range", at100(each.low), Math.max(at100(each.high) - at100(each.low), .4), 2],
      ["estimated", at100(each.estimated) - .6, 1.2, 2], ["assumed", at100(each.assumed) - .2, .4, 0],
    ];
    for (const [kind, x, width, y] of marks) {
      const mark = document.createElementNS(space, "rect");
      mark.setAttribute("class", kind);
      for (const [key, value] of Object.entries({ x: Math.max(0, x), y, width, height: 10 - 2 * y })) mark.setAttribute(key, value);
      svg.append(mark);
    }
    return svg;
  }

  function take(file) {
    if (!file) return;
    image = file;
    if (url) URL.revokeObjectURL(url);
    url = URL.createObjectURL(file);
    at("shown").src = url;
    at("shown").hidden = false;
    at("shown").alt = "The image that is asked about";
    at("invite").textContent = "Drop, paste or choose another image";
    ask();
  }

  at("file").addEventListener("change", (event) => take(event.target.files[0]));
  at("shown").addEventListener("error", () => { at("shown").hidden = true; });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    at("images").addEventListener(kind, (event) => {
      event.preventDefault();
      at("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("paste", (event) => {
    if (model && model.takes === "images") take([...event.clipboardData.files].find((each) => each.type.startsWith("image/")));
  });
  at("features").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  at("slider").addEventListener("input", () => {
    at("assumed").checked = false;
    at("place").value = "";
    markPrior();
    nameSlider();
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT);
  });
  at("assumed").addEventListener("change", ask);
  at("place").addEventListener("change", () => { at("assumed").checked = at("place").value === ""; ask(); });
  at("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    token = at("token").value.trim();
    begin();
  });
  setInterval(() => { if (model && !document.hidden) drift(); }, DRIFT_EVERY);
  begin();
})();
