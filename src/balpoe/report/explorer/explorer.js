// The prior explorer: recomputes accuracy and calibration for another label prior, from the predictions in the page.
// The arithmetic is that of balpoe.evaluate(predictions, target_prior=...). Names of classes are data: textContent only.
(() => {
  "use strict";

  // How many times as frequent the first class is as the last one: about equal steps on a log scale.
  const RATIOS = [1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.5, 8, 10, 13, 16, 20, 25, 32, 40, 50, 65, 80, 100];
  const METRICS = { /* from the catalogue of metrics, when a page is made: name: { perCent, value: function } */ };
  const MOST_CHANGES = 10;
  const FEWEST = 5;
  const NORMAL = 1.959964; // standard errors on each side of a 95 % interval
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

  // ---- the data ----

  function unpack(text, Kind) {
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return new Kind(bytes.buffer);
  }

  function load(json) {
    const raw = JSON.parse(json);
    const Wide = raw.wide ? Uint32Array : Uint16Array;
    const classes = raw.names.length;
    const levels = new Float64Array(raw.levels + 1); // probability of each code, in units of the row's largest
    for (let code = 0; code <= raw.levels; code++) levels[code] = Math.exp(-raw.deepest * (code / raw.levels) ** 2);
    const data = {
      classes, levels, names: raw.names, counts: raw.counts, tested: raw.tested, worth: raw.worth || raw.tested,
      bins: raw.bins, kept: raw.kept,
      train: unpack(raw.train, Float64Array), source: raw.source === null ? null : unpack(raw.source, Float64Array),
      targets: unpack(raw.targets, Wide), codes: unpack(raw.codes, raw.levels > 255 ? Uint16Array : Uint8Array),
      labels: raw.labels === undefined ? null : unpack(raw.labels, Wide),
      rest: raw.rest === undefined ? null : unpack(raw.rest, Float32Array),
      spread: raw.spread === undefined ? null : unpack(raw.spread, Float32Array),
    };
    data.held = new Float64Array(classes); // rows of each class in this page
    for (const label of data.targets) data.held[label]++;
    const [few, many] = raw.groups;
    data.group = raw.counts.map((count) => (count > many ? "many" : count < few ? "few" : "medium"));
    const order = raw.counts.map((_, label) => label).sort((a, b) => raw.counts[b] - raw.counts[a] || a - b);
    data.rank = new Float64Array(classes);
    order.forEach((label, rank) => { data.rank[label] = rank; });
    return data;
  }

  // ---- priors: positive weights that sum to 1 ----

  function normalised(weights) {
    const largest = weights.reduce((a, b) => Math.max(a, b), 0); // the sum of huge weights would be infinite
    const scaled = Float64Array.from(weights, (weight) => weight / largest);
    const total = scaled.reduce((a, b) => a + b, 0);
    return scaled.map((weight) => weight / total);
  }

  // Over the classes that have a test sample: about the others nothing can be measured.
  function tested(data, weights) {
    return normalised(Float64Array.from(weights, (weight, label) => (data.tested[label] > 0 ? weight : 0)));
  }

  function sliderPrior(data, step) {
    const ratio = RATIOS[Math.abs(step)];
    const place = Float64Array.from(data.rank, (rank) => rank / Math.max(1, data.classes - 1));
    const values = tested(data, place.map((x) => ratio ** (step < 0 ? -x : x - 1)));
    if (step === 0) return { name: "uniform", words: "uniform: all classes are equally frequent", values };
    const name = `${step < 0 ? "forward" : "backward"}-${ratio}`;
    const [first, last] = step < 0 ? ["most common", "rarest"] : ["rarest", "most common"];
    return { name, words: `${name}: the ${first} training class is ${ratio} times as frequent as the ${last}`, values };
  }

  function trainingPrior(data) {
    const words = "training prior: classes are as frequent as in training";
    return { name: "the training prior", words, values: tested(data, data.train) };
  }

  // The step of the slider that is nearest to a prior, so that it shows about where the prior lies.
  function nearestStep(data, values) {
    const steps = Array.from({ length: 2 * RATIOS.length - 1 }, (_, place) => place - RATIOS.length + 1);
    const distance = (step) => sliderPrior(data, step).values.reduce((sum, share, label) => sum + Math.abs(share - values[label]), 0);
    const distances = steps.map(distance);
    return steps[distances.indexOf(Math.min(...distances))];
  }

  function quoted(name) { return `\u201c\u2068${name}\u2069\u201d`; } // isolated: may be written from right to left

  function someNames(names) {
    const shown = names.slice(0, 3).map(quoted).join(", ");
    return names.length > 3 ? `${shown} and ${names.length - 3} more` : shown;
  }

  function weightIn(text, where) {
    if (!NUMBER.test(text)) throw new Error(`${where}: ${quoted(text)} is not a number; write a weight such as 0.25.`);
    const weight = Number(text);
    if (weight < 0) throw new Error(`${where}: the weight ${text} is negative; give 0 or more.`);
    if (!Number.isFinite(weight)) throw new Error(`${where}: the weight ${text} is too large; weights need not sum to 1.`);
    return weight;
  }

  // Weights from pasted text; a mistake is thrown as a sentence for the reader.
  function parseWeights(data, text) {
    const lines = text.split(/\r\n|\r|\n/).map((line, index) => ({ text: line.trim(), where: `Line ${index + 1}` }))
      .filter((line) => line.text !== "");
    if (!lines.length) throw new Error("The box is empty; give a weight for each class.");
    const named = lines.some((line) => /[,\t]/.test(line.text));
    const weights = named ? namedWeights(data, lines) : lines.map((line) => weightIn(line.text, line.where));
    if (weights.length !== data.classes) {
      throw new Error(`There are ${weights.length} numbers for ${data.classes} classes; give one for each, in order.`);
    }
    if (!weights.some((weight) => weight > 0)) throw new Error("All weights are 0; give at least one class more.");
    return { name: "your weights", words: "your own weights", values: normalised(weights) };
  }

  // A name as it is, or in the quotes in which a .csv file puts one with commas.
  function written(name, labels) {
    return labels.has(name) || !/^".*"$/.test(name) ? name : name.slice(1, -1).replaceAll('""', '"');
  }

  function namedWeights(data, lines) {
    const labels = new Map();
    data.names.forEach((name, label) => { labels.set(name.trim(), labels.has(name.trim()) ? -1 : label); });
    const weights = new Array(data.classes).fill(null);
    for (const line of lines) {
      const cut = line.text.includes("\t") ? line.text.lastIndexOf("\t") : line.text.lastIndexOf(",");
      if (cut < 0) throw new Error(`${line.where} has no comma or tab; write a name, a comma and a weight.`);
      const name = written(line.text.slice(0, cut).trim(), labels);
      const label = labels.get(name);
      const weight = line.text.slice(cut + 1).trim();
      if (label === undefined && line === lines[0] && !NUMBER.test(weight)) continue; // the headings
      if (label === undefined) throw new Error(`${line.where}: no class is called ${quoted(name)}.`);
      if (label < 0) throw new Error(`Several classes are called ${quoted(name)}; give one number for each class, in order.`);
      if (weights[label] !== null) throw new Error(`${line.where}: the class ${quoted(name)} has a weight already.`);
      weights[label] = weightIn(weight, line.where);
    }
    const missing = data.names.filter((_, label) => weights[label] === null);
    if (missing.length) throw new Error(`No weight for ${someNames(missing)}; give 0 to leave a class out.`);
    return weights;
  }

  // ---- the numbers ----

  // Each row's answer and confidence when its probabilities are multiplied by ratio = target / source prior.
  function predict(data, ratio) {
    const { codes, labels, levels, kept, targets, rest } = data;
    const correct = new Uint8Array(targets.length);
    const confidence = new Float64Array(targets.length);
    const answers = new Uint32Array(targets.length);
    let beyond = 0; // what the classes left out of a row are multiplied by, on average
    if (labels) data.spread.forEach((share, label) => { beyond += share * ratio[label]; });
    for (let row = 0, place = 0; row < targets.length; row++) {
      let sum = labels ? rest[row] * beyond : 0;
      let largest = -1;
      let answer = 0;
      for (let column = 0; column < kept; column++, place++) {
        const label = labels ? labels[place] : column;
        const value = levels[codes[place]] * ratio[label];
        sum += value;
        if (value > largest) {
          largest = value;
          answer = label;
        }
      }
      answers[row] = answer;
      correct[row] = answer === targets[row] ? 1 : 0;
      confidence[row] = sum > 0 ? largest / sum : 0;
    }
    return { correct, confidence, answers };
  }

  function mean(values) {
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
  }

  // Without values that are NaN, those of classes that are not there.
  function weightedMean(values, weights) {
    let sum = 0;
    let total = 0;
    values.forEach((value, place) => {
      if (Number.isNaN(value)) return;
      sum += weights[place] * value;
      total += weights[place];
    });
    return sum / total;
  }

  // All metrics under a prior; NaN where there is nothing to measure. What METRICS compute from is what is known here:
  // of classes perClass, prior and members; of samples correct, confidence and weights; and the bins.
  function measure(data, { correct, confidence }, prior) {
    const hits = new Float64Array(data.classes);
    data.targets.forEach((label, row) => { hits[label] += correct[row]; });
    const perClass = hits.map((hit, label) => (prior[label] > 0 ? hit / data.held[label] : NaN));
    const members = { all: [], many: [], medium: [], few: [] };
    perClass.forEach((value, label) => {
      if (Number.isNaN(value)) return;
      members.all.push(value);
      members[data.group[label]].push(value);
    });
    const weights = Float64Array.from(data.targets, (label) => prior[label] / data.held[label]);
    const bins = reliability(data.bins, correct, confidence, weights);
    const known = { perClass, prior, members, correct, confidence, weights, bins };
    const values = Object.entries(METRICS).map(([name, metric]) => [name, metric.value(known)]);
    return { ...Object.fromEntries(values), perClass, bins };
  }

  // Right-closed bins of confidence, each sample with the weight that makes the test set stand for the prior.
  function reliability(number, correct, confidence, weights) {
    const bins = Array.from({ length: number }, () => ({ mass: 0, confidence: 0, accuracy: 0, share: 0, gap: 0 }));
    let total = 0;
    weights.forEach((weight, row) => {
      const bin = bins[Math.min(number - 1, Math.max(0, Math.ceil(confidence[row] * number) - 1))];
      bin.mass += weight;
      bin.confidence += weight * confidence[row];
      bin.accuracy += weight * correct[row];
      total += weight;
    });
    for (const bin of bins.filter(({ mass }) => mass > 0)) {
      bin.share = bin.mass / total;
      bin.confidence /= bin.mass;
      bin.accuracy /= bin.mass;
      bin.gap = Math.abs(bin.accuracy - bin.confidence);
    }
    return bins;
  }

  // How many equally weighted samples the whole weighted test set is worth.
  function effectiveSamples(data, prior) {
    return 1 / prior.reduce((sum, share, label) => (share > 0 ? sum + (share * share) / data.tested[label] : sum), 0);
  }

  // How far an accuracy under a prior may lie from the true one (95 %); each class with a hit and a miss added (Laplace).
  // A class is worth as many observations as it has samples or, where samples come in groups, as these are worth.
  function accuracyError(data, { correct }, prior) {
    const hits = new Float64Array(data.classes);
    data.targets.forEach((label, row) => { hits[label] += correct[row]; });
    return errorOf(data, prior, (label, worth) => {
      const share = ((hits[label] / data.held[label]) * worth + 1) / (worth + 2);
      return share * (1 - share);
    });
  }

  // The same for a difference on the same samples, as method/intervals.py has it: to each class two differences are added
  // that sum to nothing, as large as differences are anywhere.
  function differenceError(data, first, second, prior) {
    const differing = new Float64Array(data.classes);
    const means = new Float64Array(data.classes);
    data.targets.forEach((label, row) => {
      const difference = first.correct[row] - second.correct[row];
      differing[label] += Math.abs(difference) / data.held[label];
      means[label] += difference / data.held[label];
    });
    const worths = differing.map((_, label) => Math.min(data.worth[label], data.held[label]));
    const often = differing.reduce((sum, share, label) => sum + share * worths[label], 0);
    const anywhere = (often + 1) / (worths.reduce((a, b) => a + b, 0) + 2);
    return errorOf(data, prior, (label, worth) =>
      (differing[label] * worth + 2 * anywhere) / (worth + 2) - ((means[label] * worth) / (worth + 2)) ** 2);
  }

  function errorOf(data, prior, variance) {
    let total = 0;
    let squares = 0;
    prior.forEach((share, label) => {
      if (!(share > 0)) return;
      const worth = data.worth[label];
      const spread = (share * share * variance(label, Math.min(worth, data.held[label]))) / worth;
      total += spread;
      squares += (spread * spread) / (worth + 1);
    });
    return student((total * total) / squares) * Math.sqrt(total);
  }

  // Student's quantile of a 95 % interval by the expansion of Cornish and Fisher, with degrees of freedom by Welch's rule.
  function student(freedom) {
    const z = NORMAL;
    return z + (z ** 3 + z) / (4 * freedom) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * freedom ** 2)
      + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * freedom ** 3);
  }

  // ---- the page ----

  function percent(value) { return Number.isFinite(value) ? (100 * value).toFixed(1) : "-"; }

  function shown(value, perCent) {
    return perCent ? percent(value) : Number.isFinite(value) ? value.toFixed(3) : "-";
  }

  // The difference of two numbers as they are shown.
  function change(after, before, perCent = true) { return Number(shown(after, perCent)) - Number(shown(before, perCent)); }

  function signed(difference, perCent) {
    if (!Number.isFinite(difference)) return "-";
    const text = Math.abs(difference).toFixed(perCent ? 1 : 3);
    return Number(text) === 0 ? text : `${difference < 0 ? "\u2212" : "+"}${text}`;
  }

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function row(cells) {
    const made = element("tr");
    made.append(...cells);
    return made;
  }

  function drawn(tag, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function diagram(title, bins, ece) {
    const [left, top, size] = [38, 28, 230];
    const x = (value) => left + size * value;
    const y = (value) => top + size * (1 - value);
    const svg = drawn("svg", { viewBox: "0 0 280 300", role: "img" });
    const words = Number.isFinite(ece) ? `ECE ${percent(ece)} %` : "no numbers";
    svg.setAttribute("aria-label", `Reliability diagram, ${title}: ${words}`);
    svg.append(drawn("text", { x: left, y: 16, class: "explorer-title" }, `${title}: ${words}`));
    const width = 1 / bins.length;
    bins.forEach((bin, place) => {
      if (!(bin.share > 0)) return;
      const start = x(place * width);
      const bar = { x: start + 0.5, width: size * width - 1, y: y(bin.accuracy), height: size * bin.accuracy };
      const high = Math.max(bin.accuracy, bin.confidence);
      const gap = size * Math.abs(bin.accuracy - bin.confidence);
      const narrow = { x: start + size * width * 0.22, width: size * width * 0.56, y: y(high), height: gap };
      svg.append(drawn("rect", { class: "explorer-accuracy", ...bar }), drawn("rect", { class: "explorer-gap", ...narrow }));
    });
    svg.append(drawn("path", { class: "explorer-axis", d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}` }));
    for (const name of ["explorer-under", "explorer-diagonal"]) {
      svg.append(drawn("line", { class: name, x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
    }
    for (const tick of [0, 0.5, 1]) {
      svg.append(drawn("text", { x: x(tick), y: y(0) + 15, "text-anchor": "middle" }, String(100 * tick)));
      svg.append(drawn("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(100 * tick)));
    }
    svg.append(drawn("text", { x: x(0.5), y: y(0) + 32, "text-anchor": "middle" }, "confidence, %"));
    const side = { x: 0, y: 0, "text-anchor": "middle", transform: `translate(10 ${y(0.5)}) rotate(-90)` };
    svg.append(drawn("text", side, "accuracy, %"));
    return svg;
  }

  function start(root) {
    const part = (selector) => root.querySelector(selector);
    const data = load(part(".explorer-data").textContent);
    const slider = part("input[type=range]");
    const box = part("textarea");
    const unmoved = predict(data, new Float64Array(data.classes).fill(1));
    let current = sliderPrior(data, Number(slider.value));
    let waiting = false;
    if (!data.source) root.querySelectorAll("[data-adjusted]").forEach((each) => each.remove()); // no posterior

    function choose(prior, onSlider) {
      current = prior;
      if (!onSlider) slider.value = String(nearestStep(data, prior.values));
      root.querySelectorAll("[data-prior]").forEach((button) => {
        const chosen = button.dataset.prior === "train" ? prior.name === "the training prior" : prior.name === "uniform";
        button.setAttribute("aria-pressed", String(chosen));
      });
      slider.setAttribute("aria-valuetext", onSlider ? prior.words : `${prior.words}; not from this slider`);
      part(".explorer-mistake").textContent = "";
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        const begin = performance.now();
        show();
        window.balpoeExplorer.lastMilliseconds = performance.now() - begin;
        window.balpoeExplorer.moves++;
      });
    }

    function show() {
      const prior = current.values;
      const missing = data.names.filter((_, label) => prior[label] > 0 && data.tested[label] === 0);
      const nothing = Object.fromEntries([...Object.keys(METRICS).map((name) => [name, NaN]), ["bins", []]]);
      const measured = (predicted) => (missing.length ? nothing : measure(data, predicted, prior));
      const asTrained = measured(unmoved);
      const moved = data.source && predict(data, prior.map((share, label) => share / data.source[label]));
      const adjusted = moved && measured(moved);
      const error = missing.length ? NaN : accuracyError(data, moved || unmoved, prior);
      const gainError = missing.length || !moved ? NaN : differenceError(data, moved, unmoved, prior);
      part(".explorer-prior").textContent = current.words[0].toUpperCase() + current.words.slice(1);
      const untested = data.names.filter((_, label) => data.tested[label] === 0);
      part(".explorer-problem").textContent = missing.length
        ? `The test set has no sample of ${someNames(missing)}, so nothing can be said about this prior.`
        : untested.length ? `Without a test sample, and left out here: ${someNames(untested)}.` : "";
      showSummary(adjusted, asTrained, gainError);
      showTable(adjusted, asTrained);
      const effective = missing.length ? NaN : effectiveSamples(data, prior);
      showEffective(effective, error);
      showDiagrams(adjusted, asTrained);
      if (adjusted) showChanges(adjusted, asTrained);
      window.balpoeExplorer.result = { prior: current.name, adjusted, asTrained, effective, error, gainError };
      root.dispatchEvent(new CustomEvent("balpoe-prior", { detail: { data, prior: current, possible: !missing.length } }));
    }

    function showSummary(adjusted, asTrained, error) {
      const numbers = adjusted
        ? `${percent(adjusted.accuracy)} % adjusted and ${percent(asTrained.accuracy)} % as trained: ${effect(adjusted, asTrained, error)}`
        : `${percent(asTrained.accuracy)} %`;
      part(".explorer-summary").textContent = Number.isNaN(asTrained.accuracy) ? ""
        : `Under ${current.name}, accuracy is ${numbers}.`;
    }

    // What adjusting does to the accuracy, and no verdict where that may be random.
    function effect(adjusted, asTrained, error) {
      const gain = change(adjusted.accuracy, asTrained.accuracy);
      const size = Math.abs(gain).toFixed(1);
      if (size === "0.0") return "adjusting changes nothing";
      const ends = [gain - 100 * error, gain + 100 * error].map((end) => signed(end, true)).join(" to ");
      const difference = adjusted.accuracy - asTrained.accuracy;
      return Math.abs(difference) > error
        ? `adjusting ${gain > 0 ? "gains" : "costs"} ${size} points (95 % interval ${ends})`
        : `adjusting changes it by ${signed(gain, true)} points (95 % interval ${ends}), which may be random`;
    }

    function showTable(adjusted, asTrained) {
      for (const [name, { perCent }] of Object.entries(METRICS)) {
        const cells = part(`[data-metric="${name}"]`).querySelectorAll("td");
        cells[0].textContent = shown(asTrained[name], perCent);
        if (!adjusted) continue;
        cells[1].textContent = shown(adjusted[name], perCent);
        cells[2].textContent = signed(change(adjusted[name], asTrained[name], perCent), perCent);
      }
      for (const name of ["many", "medium", "few"]) {
        const members = data.names.map((_, label) => label).filter((label) => data.group[label] === name);
        const share = members.reduce((sum, label) => sum + current.values[label], 0);
        const noun = members.length === 1 ? "class" : "classes";
        part(`[data-metric="${name}"]`).hidden = members.length === 0;
        part(`[data-metric="${name}"] small`).textContent = `${members.length} ${noun}, ${percent(share)} % of the cases`;
      }
    }

    function showEffective(effective, error) {
      const samples = data.tested.reduce((a, b) => a + b, 0).toLocaleString("en");
      const worth = Math.round(effective).toLocaleString("en");
      part(".explorer-effective").textContent = Number.isFinite(effective)
        ? `The ${samples} test samples, weighted to these frequencies, are worth ${worth} equally weighted ones; they tell the accuracy to \u00b1 ${percent(error)} points (95 % interval).` : "";
    }

    function showDiagrams(adjusted, asTrained) {
      part('[data-diagram="asTrained"]').replaceChildren(diagram("As trained", asTrained.bins, asTrained.ece));
      if (adjusted) part('[data-diagram="adjusted"]').replaceChildren(diagram("Adjusted", adjusted.bins, adjusted.ece));
      const numbers = (bin) => (bin.share > 0 ? [bin.share, bin.confidence, bin.accuracy] : [0, NaN, NaN]);
      part(".explorer-bins tbody").replaceChildren(...asTrained.bins.map((bin, place) => {
        const range = `${percent(place / data.bins)} to ${percent((place + 1) / data.bins)}`;
        const cells = [bin, ...(adjusted ? [adjusted.bins[place]] : [])].flatMap(numbers).map((value) => element("td", percent(value)));
        return row([element("th", range, { scope: "row" }), ...cells]);
      }));
    }

    function showChanges(adjusted, asTrained) {
      const changes = Array.from(adjusted.perClass || [], (after, label) => ({ label, after, before: asTrained.perClass[label] }))
        .filter(({ label, after, before }) => after !== before && !Number.isNaN(after)
          && (!data.labels || data.held[label] >= FEWEST)) // of an approximate page, where one row is not the whole class
        .sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before) || a.label - b.label);
      part(".explorer-unchanged").hidden = changes.length > 0 || !adjusted.perClass;
      part(".explorer-changes table").hidden = changes.length === 0;
      part(".explorer-changes tbody").replaceChildren(...changes.slice(0, MOST_CHANGES).map(({ label, before, after }) => {
        const name = element("th", undefined, { scope: "row" });
        name.append(element("bdi", data.names[label]));
        const count = element("td", data.counts[label].toLocaleString("en"));
        return row([name, count, element("td", percent(before)), element("td", percent(after))]);
      }));
    }

    function useBox() {
      try {
        choose(parseWeights(data, box.value), false);
      } catch (mistake) {
        part(".explorer-mistake").textContent = mistake.message;
      }
    }

    slider.addEventListener("input", () => choose(sliderPrior(data, Number(slider.value)), true));
    part('[data-prior="train"]').addEventListener("click", () => choose(trainingPrior(data), false));
    part('[data-prior="uniform"]').addEventListener("click", () => {
      slider.value = "0";
      choose(sliderPrior(data, 0), true);
    });
    part('[data-do="use"]').addEventListener("click", useBox);
    part('[data-do="fill"]').addEventListener("click", () => {
      const digits = (share) => Number(share.toPrecision(6));
      box.value = data.names.map((name, label) => `${name}\t${digits(current.values[label])}`).join("\n");
    });
    box.placeholder = data.names.slice(0, 2).map((name, place) => `${name}, ${3 - 2 * place}`).join("\n");
    part(".explorer-body").hidden = false;
    choose(current, true);
  }

  function startAll() { document.querySelectorAll(".explorer").forEach(start); }

  const parts = { RATIOS, predict, percent, change, signed, element, row, drawn, unpack, someNames }; // for what follows the prior
  window.balpoeExplorer = { lastMilliseconds: 0, moves: 0, result: null, parts };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
  else startAll();
})();
