// Decisions, recomputed for the deployment prior of the explorer and for the controls of this part.
// The arithmetic is that of balpoe.decide, risk_coverage_by_group and Taxonomy. Names are data: textContent only.
(() => {
  "use strict";

  const { predict, percent, change, signed, element, row, drawn, someNames, RATIOS } = window.balpoeExplorer.parts;
  const SETS_OF = { all: "all, under this prior", alike: "all, each class alike" }; // others are shot groups
  const GROUPS = ["all", "many", "medium", "few"];
  const HEIGHTS = [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1]; // of the curve's axis
  const DRAWN_POINTS = 250;
  const MOST_OPTIONS = 2000; // of classes to choose from: more make a page slow, and rare ones are the ones missed

  // ---- the numbers ----

  // The rows that count, surest first.
  function ordered(confidence, weights) {
    return Uint32Array.from(weights.keys()).filter((place) => weights[place] > 0).sort((a, b) => confidence[b] - confidence[a]);
  }

  // The risk-coverage curve of some rows, surest first; rows of equal confidence are answered together.
  function riskCoverage(rows, { correct, confidence }, weights) {
    const [least, coverage, risk] = [0, 1, 2].map(() => new Float64Array(rows.length));
    let [answered, wrong, area, points, total] = [0, 0, 0, 0, 0];
    for (const place of rows) total += weights[place];
    for (let number = 0; number < rows.length; number++) {
      const place = rows[number];
      answered += weights[place];
      if (!correct[place]) wrong += weights[place];
      if (number + 1 < rows.length && confidence[rows[number + 1]] === confidence[place]) continue;
      least[points] = confidence[place];
      coverage[points] = answered / total;
      risk[points] = wrong / answered;
      area += (coverage[points] - (points ? coverage[points - 1] : 0)) * risk[points];
      points++;
    }
    return { least, coverage, risk, points, area, error: risk[points - 1] };
  }

  // Where the curve is, if answers are given from a confidence on.
  function operating(curve, wanted) {
    let [low, high] = [0, curve.points]; // the first point below it
    while (low < high) {
      const middle = (low + high) >> 1;
      if (curve.least[middle] >= wanted) low = middle + 1;
      else high = middle;
    }
    return low ? { coverage: curve.coverage[low - 1], risk: curve.risk[low - 1] } : { coverage: 0, risk: NaN };
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

  // The labels above the classes that a page does not hold of a row: their probabilities, in units of the row's rest.
  function leftOut(data, tree, ratio) {
    const left = new Float64Array(tree.labels);
    if (!data.labels) return left;
    data.spread.forEach((share, label) => {
      left[tree.labels - 1] += share * ratio[label]; // the root has all
      tree.above.slice(1).forEach((above) => { if (above[label] >= 0) left[above[label]] += share * ratio[label]; });
    });
    return left;
  }

  // The most probable label of each row at each level of a tree, and its probability; row by row, level by level.
  function treeAnswers(data, tree, ratio) {
    const { codes, labels, levels, kept, targets, rest } = data;
    const height = tree.above.length;
    const root = tree.labels - 1;
    const left = leftOut(data, tree, ratio);
    const above = tree.above.map((each) => Int32Array.from(each));
    const members = above.map((each) => Int32Array.from(new Set(each)).filter((label) => label >= 0));
    const [best, reached] = [new Int32Array(targets.length * height), new Float64Array(targets.length * height)];
    const sums = new Float64Array(tree.labels);
    for (let place = 0, at = 0; place < targets.length; place++) {
      for (let label = data.classes; label < tree.labels; label++) sums[label] = labels ? rest[place] * left[label] : 0;
      let [answer, most] = [0, -1];
      for (let column = 0; column < kept; column++, at++) {
        const label = labels ? labels[at] : column;
        const value = levels[codes[at]] * ratio[label];
        sums[root] += value;
        if (value > most) {
          most = value;
          answer = label;
        }
        for (let level = 1; level < height; level++) if (above[level][label] >= 0) sums[above[level][label]] += value;
      }
      best[place * height] = answer;
      reached[place * height] = most / sums[root];
      for (let level = 1; level < height; level++) {
        const cell = place * height + level;
        const here = members[level];
        let largest = here[0];
        for (let number = 1; number < here.length; number++) if (sums[here[number]] > sums[largest]) largest = here[number];
        best[cell] = largest;
        reached[cell] = sums[largest] / sums[root];
      }
    }
    return { best, reached };
  }

  // Accuracy at each level, and how many rows have their deepest label of the wanted confidence there.
  function treeLevels(data, tree, { best, reached }, weights, wanted) {
    const height = tree.above.length;
    const found = tree.levels.map(() => ({ counted: 0, right: 0, answered: 0, fine: 0 }));
    let mass = 0;
    data.targets.forEach((target, place) => {
      const weight = weights[place];
      let deepest = height;
      for (let level = height - 1; level >= 0; level--) {
        const truth = tree.above[level][target];
        if (truth >= 0) found[level].counted += weight;
        if (best[place * height + level] === truth) found[level].right += weight;
        if (reached[place * height + level] >= wanted) deepest = level;
      }
      mass += weight;
      found[deepest].answered += weight;
      if (deepest === height || best[place * height + deepest] === tree.above[deepest][target]) found[deepest].fine += weight;
    });
    return found.map(({ counted, right, answered, fine }, level) => ({
      name: tree.levels[level], accuracy: level < height ? right / counted : NaN, share: answered / mass, right: fine / answered,
    }));
  }

  // ---- the page ----

  function capital(text) { return text[0].toUpperCase() + text.slice(1); }

  // As many points of a curve, coverage and risk, as can be seen; the last one is among them.
  function thinned({ coverage, risk, points }) {
    const number = Math.min(points, DRAWN_POINTS);
    const places = Array.from({ length: number }, (_, each) => Math.ceil(((each + 1) * points) / number) - 1);
    return places.map((place) => [coverage[place], risk[place]]);
  }

  function curveDrawing(curves, points) {
    const [left, top, width, height] = [44, 12, 300, 190];
    const lines = curves.map(({ name, curve }) => ({ name, line: thinned(curve) }));
    const late = lines.flatMap(({ line }) => line.filter(([share]) => share > 0.1).map(([, risk]) => risk)); // before, noise
    const highest = Math.max(0.01, ...late);
    const limit = HEIGHTS.find((each) => each >= highest) || 1;
    const x = (share) => left + width * share;
    const y = (risk) => top + height * (1 - Math.min(1, risk / limit));
    const svg = drawn("svg", { viewBox: "0 0 360 266", role: "img" });
    for (const part of [0, 0.5, 1]) {
      svg.append(drawn("path", { class: "decide-grid", d: `M${x(0)} ${y(part * limit)}H${x(1)}` }));
      svg.append(drawn("text", { x: left - 6, y: y(part * limit) + 4, "text-anchor": "end" }, String(Number((100 * part * limit).toFixed(1)))));
      svg.append(drawn("text", { x: x(part), y: y(0) + 16, "text-anchor": "middle" }, String(100 * part)));
    }
    lines.forEach(({ name, line }) => {
      const path = line.map(([share, risk]) => `${x(share).toFixed(1)} ${y(risk).toFixed(1)}`).join("L");
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
    let [data, prior, ratio, weights, plain, curves, grown, samples, ready] = [];
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
      const levels = treeLevels(data, own.tree, grown, weights, wanted);
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

    // What is promised under this prior: the sentences of set_promise.py that depend on it come last.
    function promised({ method, always, least }, place) {
      const sentences = [own.sets.methods[method][place]];
      if (own.sets.proven.includes(method)) sentences.push(`Whatever those shares were, at least ${percent(Math.max(0, least))} %.`);
      if (always.length) sentences.push(`In every set, as too few held-out samples say when to leave it out: ${someNames(always.map((label) => data.names[label]))}.`);
      return sentences.join(" ");
    }

    function showSets() {
      const place = Number(control("alpha").value);
      const alpha = own.sets.alphas[place];
      const scores = window.balpoeSets.scores(samples, ready, prior.values, data.group, alpha, control("method").value);
      const [all, alike] = scores.groups;
      const summary = `Under this prior ${percent(all.coverage)} % of the test samples\u2019 sets hold the class, and a set has ${all.size.toFixed(1)} classes; with each class alike, ${percent(alike.coverage)} % and ${alike.size.toFixed(1)}.`;
      say("alpha", `Wanted: ${Number((100 * (1 - alpha)).toFixed(1))} % of the sets hold the class (alpha ${alpha}).`, ["sets", summary]);
      fill("sets", scores.groups.map(({ name, coverage, interval, size }) => headed(SETS_OF[name] || `${name}-shot`,
        [percent(coverage), interval.map(percent).join(" to "), size.toFixed(2)])));
      part(".decide-promise").textContent = promised(scores, place);
      result.sets = scores;
    }

    // What the prior changes; all others follow from it.
    function usePrior() {
      ratio = prior.values.map((share, label) => share / data.source[label]);
      weights = Float64Array.from(data.targets, (label) => prior.values[label] / data.held[label]);
      plain = predict(data, ratio);
      if (own.tree) grown = treeAnswers(data, own.tree, ratio);
      if (own.sets) ready = window.balpoeSets.prepared(samples, ratio);
      const rows = ordered(plain.confidence, weights);
      const member = (name) => (place) => name === "all" || data.group[data.targets[place]] === name;
      curves = GROUPS.map((name) => ({ name, curve: riskCoverage(rows.filter(member(name)), plain, weights) }))
        .filter(({ curve }) => curve.points);
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

    function listen(name, show) { control(name).addEventListener("input", () => { if (data) update(show); }); }

    function begin() {
      const present = data.names.map((_, label) => label).filter((label) => data.held[label] > 0);
      const rarest = [...present].sort((a, b) => data.counts[a] - data.counts[b] || b - a);
      const few = new Set(rarest.slice(0, MOST_OPTIONS));
      const options = present.filter((label) => few.has(label)); // in the order of the classes
      control("class").replaceChildren(...options.map((label) => element("option", data.names[label], { value: label })));
      control("class").value = String(rarest[0]);
      if (options.length < present.length) part(".decide-which").textContent = `of the ${MOST_OPTIONS.toLocaleString("en")} rarest`;
      if (own.sets) samples = { validation: window.balpoeSets.load(own.sets.validation, data.classes), test: window.balpoeSets.load(own.sets.test, data.classes) };
    }

    function follow({ data: now, prior: chosen, possible }) {
      const first = data === undefined;
      [data, prior] = [now, chosen];
      part(".decide-prior").textContent = prior.words;
      part(".explorer-problem").textContent = possible ? "" : "The test set lacks classes of this prior, so nothing can be said about it.";
      part(".decide-live").hidden = !possible;
      if (first) begin();
      if (!possible) return;
      update("prior", "abstain", "cost", ...(own.tree ? ["tree"] : []), ...(own.sets ? ["sets"] : []));
    }

    listen("confidence", "abstain");
    listen("class", "cost");
    listen("weight", "cost");
    if (own.tree) listen("level", "tree");
    if (own.sets) ["method", "alpha"].forEach((name) => listen(name, "sets"));
    const explorer = document.querySelector(".explorer");
    explorer.addEventListener("balpoe-prior", ({ detail }) => follow(detail));
    part('[data-do="prior"]').addEventListener("click", () => explorer.querySelector("input[type=range]").focus());
    part(".decide-body").hidden = false;
  }

  window.balpoeDecide = { moves: 0, result: {} };
  document.querySelectorAll(".decide").forEach(start);
})();
