// Decisions, recomputed for the deployment prior of the explorer and for the controls of this part.
// The arithmetic is that of balpoe.decide, risk_coverage_by_group and Taxonomy. Names are data: textContent only.
(() => {
  "use strict";

  const { predict, percent, change, signed, element, row, drawn, RATIOS } = window.balpoeExplorer.parts;
  const GROUPS = ["all", "many", "medium", "few"];
  const HEIGHTS = [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1]; // of the curve's axis
  const DRAWN_POINTS = 250;

  // ---- the numbers ----

  // The rows of a group, surest first.
  function ordered(data, confidence, weights, group) {
    const rows = [];
    data.targets.forEach((label, place) => {
      if (weights[place] > 0 && (group === "all" || data.group[label] === group)) rows.push(place);
    });
    return rows.sort((a, b) => confidence[b] - confidence[a]);
  }

  // The risk-coverage curve of some rows, surest first; rows of equal confidence are answered together.
  function riskCoverage(rows, { correct, confidence }, weights) {
    const total = rows.reduce((sum, place) => sum + weights[place], 0);
    const points = [];
    let [answered, wrong, area, before] = [0, 0, 0, 0];
    rows.forEach((place, number) => {
      answered += weights[place];
      if (!correct[place]) wrong += weights[place];
      if (number + 1 < rows.length && confidence[rows[number + 1]] === confidence[place]) return;
      const point = { confidence: confidence[place], coverage: answered / total, risk: wrong / answered };
      area += (point.coverage - before) * point.risk;
      before = point.coverage;
      points.push(point);
    });
    return { points, area, error: points.length ? points.at(-1).risk : NaN };
  }

  // Where the curve is, if answers are given from a confidence on.
  function operating(curve, least) {
    let [low, high] = [0, curve.points.length]; // the first point below it
    while (low < high) {
      const middle = (low + high) >> 1;
      if (curve.points[middle].confidence >= least) low = middle + 1;
      else high = middle;
    }
    return low ? curve.points[low - 1] : { coverage: 0, risk: NaN };
  }

  // How well a class is found, and the others; answers are weighted to the prior.
  function foundOf(data, { answers }, prior, weights, chosen) {
    const hits = new Float64Array(data.classes);
    let [named, right, taken] = [0, 0, 0];
    data.targets.forEach((label, place) => {
      if (answers[place] === label) hits[label]++;
      if (answers[place] !== chosen) return;
      named += weights[place];
      if (label === chosen) right += weights[place];
      else taken++;
    });
    let [accuracy, sum, present] = [0, 0, 0];
    hits.forEach((hit, label) => {
      if (!(prior[label] > 0)) return;
      accuracy += prior[label] * (hit / data.held[label]);
      sum += hit / data.held[label];
      present++;
    });
    return {
      recall: hits[chosen] / data.held[chosen], precision: right / named, accuracy, balanced: sum / present,
      hits: hits[chosen], taken,
    };
  }

  // Accuracy at each level of a tree, and the deepest label of each row that reaches the wanted confidence.
  function treeLevels(data, tree, ratio, weights, wanted) {
    const { codes, labels, levels, kept, targets, rest } = data;
    const height = tree.above.length;
    const left = new Float64Array(tree.labels); // of the classes that a row does not hold, in units of its rest
    const upper = Array.from({ length: height }, (_, level) => [...new Set(tree.above[level])].filter((label) => level && label >= 0));
    if (labels) {
      data.spread.forEach((share, label) => {
        for (let level = 1; level < height; level++) if (tree.above[level][label] >= 0) left[tree.above[level][label]] += share * ratio[label];
      });
    }
    const beyond = labels ? data.spread.reduce((sum, share, label) => sum + share * ratio[label], 0) : 0;
    const sums = new Float64Array(tree.labels);
    const found = Array.from({ length: height + 1 }, () => ({ counted: 0, right: 0, answered: 0, fine: 0 }));
    let mass = 0;
    for (let place = 0; place < targets.length; place++) {
      const weight = weights[place];
      if (!(weight > 0)) continue;
      for (let level = 1; level < height; level++) for (const label of upper[level]) sums[label] = labels ? rest[place] * left[label] : 0;
      const best = new Array(height).fill(-1);
      const largest = new Float64Array(height).fill(-1);
      let total = labels ? rest[place] * beyond : 0;
      for (let column = 0, at = place * kept; column < kept; column++, at++) {
        const label = labels ? labels[at] : column;
        const value = levels[codes[at]] * ratio[label];
        total += value;
        if (value > largest[0]) [largest[0], best[0]] = [value, label];
        for (let level = 1; level < height; level++) if (tree.above[level][label] >= 0) sums[tree.above[level][label]] += value;
      }
      for (let level = 1; level < height; level++) {
        for (const label of upper[level]) if (sums[label] > largest[level]) [largest[level], best[level]] = [sums[label], label];
      }
      mass += weight;
      let deepest = height;
      for (let level = height - 1; level >= 0; level--) {
        const truth = tree.above[level][targets[place]];
        if (truth >= 0) {
          found[level].counted += weight;
          if (best[level] === truth) found[level].right += weight;
        }
        if (largest[level] >= wanted * total) deepest = level;
      }
      found[deepest].answered += weight;
      if (deepest === height || best[deepest] === tree.above[deepest][targets[place]]) found[deepest].fine += weight;
    }
    return found.map(({ counted, right, answered, fine }, level) => ({
      name: tree.levels[level], accuracy: level < height ? right / counted : NaN, share: answered / mass, right: fine / answered,
    }));
  }

  // ---- the page ----

  function capital(text) { return text[0].toUpperCase() + text.slice(1); }

  function curveDrawing(curves, points) {
    const [left, top, width, height] = [44, 12, 300, 190];
    const late = curves.flatMap(({ curve }) => curve.points.filter(({ coverage }) => coverage > 0.1).map(({ risk }) => risk));
    const highest = Math.max(0.01, ...late.filter((_, place) => place % Math.ceil(late.length / 1000) === 0), ...curves.map(({ curve }) => curve.error || 0));
    const limit = HEIGHTS.find((each) => each >= highest) || 1;
    const x = (share) => left + width * share;
    const y = (risk) => top + height * (1 - Math.min(1, risk / limit));
    const svg = drawn("svg", { viewBox: "0 0 360 266", role: "img" });
    for (const part of [0, 0.5, 1]) {
      svg.append(drawn("path", { class: "decide-grid", d: `M${x(0)} ${y(part * limit)}H${x(1)}` }));
      svg.append(drawn("text", { x: left - 6, y: y(part * limit) + 4, "text-anchor": "end" }, String(Number((100 * part * limit).toFixed(1)))));
      svg.append(drawn("text", { x: x(part), y: y(0) + 16, "text-anchor": "middle" }, String(100 * part)));
    }
    curves.forEach(({ name, curve }) => {
      const step = Math.ceil(curve.points.length / DRAWN_POINTS);
      const shown = curve.points.filter((_, place) => place % step === 0 || place === curve.points.length - 1);
      const path = shown.map(({ coverage, risk }) => `${x(coverage).toFixed(1)} ${y(risk).toFixed(1)}`).join("L");
      svg.append(drawn("path", { class: `decide-${name}`, d: `M${path}` }));
    });
    points.forEach(({ name, point }) => {
      if (point.coverage > 0) svg.append(drawn("circle", { class: `decide-${name}`, cx: x(point.coverage), cy: y(point.risk), r: name === "all" ? 6 : 4.5 }));
    });
    svg.append(drawn("text", { x: x(0.5), y: y(0) + 33, "text-anchor": "middle" }, "answered, % of the samples"));
    svg.append(drawn("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${y(limit / 2)}) rotate(-90)` }, "wrong, % of the answers"));
    curves.forEach(({ name }, place) => {
      const start = left + 84 * place;
      svg.append(drawn("path", { class: `decide-${name}`, d: `M${start} ${top + height + 50}h24` }));
      svg.append(drawn("text", { x: start + 29, y: top + height + 54 }, name));
    });
    return svg;
  }

  function headed(name, cells) {
    return row([element("th", name, { scope: "row" }), ...cells.map((text) => element("td", text))]);
  }

  function start(root) {
    const part = (selector) => root.querySelector(selector);
    const control = (name) => part(`[data-control="${name}"]`);
    const own = JSON.parse(part(".decide-data").textContent);
    const result = window.balpoeDecide.result;
    let [data, prior, ratio, weights, plain, curves] = [];
    let waiting = new Set();

    function fill(table, rows) { part(`[data-table="${table}"] tbody`).replaceChildren(...rows); }

    function say(name, setting, summary) {
      part(`[data-setting="${name}"]`).textContent = setting;
      control(name).setAttribute("aria-valuetext", setting);
      part(`[data-summary="${summary[0]}"]`).textContent = summary[1];
    }

    function showAbstaining() {
      const least = Number(control("confidence").value) / 100;
      const points = curves.map(({ name, curve }) => ({ name, point: operating(curve, least) }));
      const [all] = points;
      const kept = percent(all.point.coverage);
      const summary = all.point.coverage > 0
        ? `${kept} % of the samples are answered, and ${percent(all.point.risk)} % of the answers are wrong, instead of ${percent(curves[0].curve.error)} % if all are answered.`
        : "Nothing is answered.";
      const costs = `right where no answer costs ${(1 - least).toFixed(2)} of what a wrong one does`;
      say("confidence", `Answer from a confidence of ${Math.round(100 * least)} % on: ${costs}.`, ["abstain", summary]);
      fill("abstain", points.map(({ name, point }, place) => headed(name,
        [1 - point.coverage, point.risk, curves[place].curve.error, curves[place].curve.area].map(percent))));
      const drawing = curveDrawing(curves, points);
      drawing.setAttribute("aria-label", `Risk-coverage curve. ${summary}`);
      part('[data-figure="curve"]').replaceChildren(drawing);
      result.abstain = { least, groups: points.map(({ name, point }, place) => ({ name, ...point, area: curves[place].curve.area })) };
    }

    function showCost() {
      const chosen = Number(control("class").value);
      const weight = RATIOS[Number(control("weight").value)];
      const name = `\u201c\u2068${data.names[chosen]}\u2069\u201d`;
      const costly = ratio.map((value, label) => (label === chosen ? weight * value : value));
      const before = foundOf(data, plain, prior.values, weights, chosen);
      const after = foundOf(data, predict(data, costly), prior.values, weights, chosen);
      const held = data.held[chosen].toLocaleString("en");
      const summary = !(prior.values[chosen] > 0) ? `${name} does not occur under this prior.`
        : `Of its ${held} test samples, ${after.hits} are found instead of ${before.hits}; of other samples, ${after.taken} instead of ${before.taken} are taken for it.`;
      say("weight", `Missing ${name} costs ${weight}, any other class 1.`, ["cost", summary]);
      const rows = [["recall", "found, of its samples"], ["precision", "right, of the answers that name it"], ["accuracy", "accuracy of all"], ["balanced", "balanced accuracy of all"]];
      fill("cost", rows.map(([key, words]) => headed(words,
        [percent(before[key]), percent(after[key]), signed(change(after[key], before[key]), true)])));
      result.cost = { chosen, weight, before, after };
    }

    function showTree() {
      const wanted = Number(control("level").value) / 100;
      const levels = treeLevels(data, own.tree, ratio, weights, wanted);
      const none = levels.at(-1);
      const answered = levels.slice(0, -1).filter(({ share }) => share > 0);
      const right = answered.reduce((sum, { share, right: fine }) => sum + share * fine, 0) / (1 - none.share);
      const summary = answered.length
        ? `${percent(levels[0].share)} % of the samples get a ${levels[0].name}, ${percent(1 - levels[0].share - none.share)} % a coarser label, ${percent(none.share)} % none; ${percent(right)} % of the labels are right.`
        : "No label is sure enough.";
      say("level", `The deepest label with a confidence of ${Math.round(100 * wanted)} %.`, ["tree", summary]);
      fill("tree", levels.map(({ name, accuracy, share, right: fine }, place) => (place + 1 < levels.length
        ? headed(name, [percent(accuracy), percent(share), percent(fine)]) : headed("none", ["-", percent(share), "-"]))));
      result.tree = { wanted, levels };
    }

    function showSets() {
      const method = control("method").value;
      const scores = own.sets.filter((each) => each.method === method);
      const chosen = scores[Number(control("alpha").value)];
      const rows = Object.entries(chosen.groups);
      const [[, mixed], [, alike]] = rows;
      const summary = `In the class mix of the held-out samples, ${percent(mixed[0])} % of the test samples\u2019 sets hold the class, and a set has ${mixed[1].toFixed(1)} classes; with each class alike, ${percent(alike[0])} % and ${alike[1].toFixed(1)}.`;
      say("alpha", `Promised: ${Number((100 * (1 - chosen.alpha)).toFixed(1))} % of the sets hold the class (alpha ${chosen.alpha}).`, ["sets", summary]);
      fill("sets", rows.map(([name, [share, size]]) => headed(own.rows[name] || `${name}-shot`, [percent(share), size.toFixed(2)])));
      part(".decide-promise").textContent = chosen.promise;
      result.sets = chosen;
    }

    // What the prior changes; all others follow from it.
    function usePrior() {
      ratio = prior.values.map((share, label) => share / data.source[label]);
      weights = Float64Array.from(data.targets, (label) => prior.values[label] / data.held[label]);
      plain = predict(data, ratio);
      curves = GROUPS.map((name) => ({ name, rows: ordered(data, plain.confidence, weights, name) }))
        .filter(({ rows }) => rows.length).map(({ name, rows }) => ({ name, curve: riskCoverage(rows, plain, weights) }));
    }

    const shows = { prior: usePrior, abstain: showAbstaining, cost: showCost, tree: showTree, sets: showSets }; // in this order

    // Once for all that changed since the last frame.
    function update(...names) {
      if (!waiting.size) {
        requestAnimationFrame(() => {
          const now = waiting;
          waiting = new Set();
          Object.keys(shows).filter((name) => now.has(name)).forEach((name) => shows[name]());
          window.balpoeDecide.moves++;
        });
      }
      names.forEach((name) => waiting.add(name));
    }

    function listen(name, show) { control(name).addEventListener("input", () => { if (data || show === "sets") update(show); }); }

    function begin() {
      const order = data.names.map((_, label) => label);
      control("class").replaceChildren(...order.map((label) => element("option", data.names[label], { value: label })));
      const rarest = order.filter((label) => data.tested[label] > 0).reduce((a, b) => (data.counts[b] < data.counts[a] ? b : a));
      control("class").value = String(rarest);
      if (own.sets.length) update("sets");
    }

    function follow({ data: now, prior: chosen, possible }) {
      const first = data === undefined;
      [data, prior] = [now, chosen];
      part(".decide-prior").textContent = prior.words;
      part(".explorer-problem").textContent = possible ? "" : "The test set lacks classes of this prior, so nothing can be said about it.";
      part(".decide-live").hidden = !possible;
      if (first) begin();
      if (!possible) return;
      update("prior", "abstain", "cost", ...(own.tree ? ["tree"] : []));
    }

    listen("confidence", "abstain");
    listen("class", "cost");
    listen("weight", "cost");
    if (own.tree) listen("level", "tree");
    if (own.sets.length) ["method", "alpha"].forEach((name) => listen(name, "sets"));
    const explorer = document.querySelector(".explorer");
    explorer.addEventListener("balpoe-prior", ({ detail }) => follow(detail));
    part('[data-do="prior"]').addEventListener("click", () => explorer.querySelector("input[type=range]").focus());
    part(".decide-body").hidden = false;
  }

  window.balpoeDecide = { moves: 0, result: {} };
  document.querySelectorAll(".decide").forEach(start);
})();
