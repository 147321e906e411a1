// Prediction sets under any deployment prior, from the held-out and test samples that the page holds.
// The arithmetic is that of ConformalSets.fit(validation, target_prior=...), with probabilities instead of scores.
(() => {
  "use strict";

  const { unpack } = window.balpoeExplorer.parts;
  const ROUNDING = 1e-12; // of sums of weights, as in set_thresholds.py
  const NORMAL = 1.959964; // standard errors on each side of a 95 % interval

  function load(raw, classes) {
    const Wide = raw.wide ? Uint32Array : Uint16Array;
    const levels = Float64Array.from({ length: raw.levels + 1 }, (_, code) => Math.exp(-raw.deepest * (code / raw.levels) ** 2));
    const rows = {
      levels, kept: raw.kept, classes, targets: unpack(raw.targets, Wide),
      codes: unpack(raw.codes, raw.levels > 255 ? Uint16Array : Uint8Array),
      labels: raw.labels && unpack(raw.labels, Wide), rest: raw.rest && unpack(raw.rest, Float32Array),
      spread: raw.spread && unpack(raw.spread, Float32Array),
    };
    rows.counts = new Float64Array(classes);
    for (const label of rows.targets) rows.counts[label]++;
    return rows;
  }

  // Of each row, in units of its most probable class: its sum under the prior, and what its own class has of it.
  function totals({ levels, kept, targets, codes, labels, rest, spread }, ratio) {
    const sums = new Float64Array(targets.length);
    const own = new Float64Array(targets.length);
    const beyond = labels ? spread.reduce((sum, share, label) => sum + share * ratio[label], 0) : 0;
    for (let row = 0, place = 0; row < targets.length; row++) {
      let sum = labels ? rest[row] * beyond : 0;
      for (let column = 0; column < kept; column++, place++) {
        const label = labels ? labels[place] : column;
        const value = levels[codes[place]] * ratio[label];
        sum += value;
        if (label === targets[row]) own[row] = value;
      }
      sums[row] = sum;
    }
    return { sums, own };
  }

  // Numbers of the pools whose classes share a threshold; -1 takes all samples.
  function poolsOf(counts, alpha, method) {
    if (method === "marginal") return Int32Array.from(counts, () => -1);
    const least = Math.max(1, Math.ceil(1 / alpha - 1 - 1e-9));
    const together = counts.reduce((sum, count) => sum + (count < least ? count : 0), 0);
    return Int32Array.from(counts, (count, label) => (count >= least ? label : together >= least ? counts.length : -1));
  }

  // The probability from which on each class enters a set: 0 for always, infinity for never.
  function limits(rows, { sums, own }, prior, alpha, method) {
    const { counts, targets } = rows;
    const weights = prior.map((share, label) => (share > 0 ? (share * targets.length) / counts[label] : 0));
    const pools = poolsOf(counts, alpha, method);
    const probability = own.map((value, row) => value / sums[row]);
    const order = Uint32Array.from(targets.keys()).filter((row) => weights[targets[row]] > 0)
      .sort((a, b) => probability[b] - probability[a]);
    const members = new Map();
    for (const pool of pools) if (!members.has(pool)) members.set(pool, { values: [], masses: [], total: 0 });
    for (const row of order) {
      for (const pool of new Set([-1, pools[targets[row]]])) {
        const found = members.get(pool);
        if (!found) continue;
        found.total += weights[targets[row]];
        found.values.push(probability[row]);
        found.masses.push(found.total);
      }
    }
    return Float64Array.from(weights, (weight, label) => {
      if (weight === 0) return Infinity;
      const { values, masses, total } = members.get(pools[label]);
      const place = firstFrom(masses, (1 - alpha) * (total + weight) * (1 - ROUNDING));
      return place < values.length ? values[place] : 0;
    });
  }

  // The place of the first of growing numbers that reaches a value.
  function firstFrom(numbers, value) {
    let [low, high] = [0, numbers.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] >= value) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // Whether each test sample's set holds its class, and how many classes are in it.
  function setsOf(rows, { sums, own }, ratio, limit) {
    const { levels, kept, targets, codes, labels, rest, spread } = rows;
    const [held, sizes] = [new Uint8Array(targets.length), new Uint32Array(targets.length)];
    // A class that a row does not hold has its usual share of the row's rest, and is in the set if that reaches its limit.
    const reach = labels && Float64Array.from(limit, (least, label) => (least === 0 ? Infinity : (spread[label] * ratio[label]) / least));
    const rising = labels && Float64Array.from(reach).sort();
    for (let row = 0, place = 0; row < targets.length; row++) {
      const wanted = labels ? sums[row] / rest[row] : NaN;
      let size = labels ? rising.length - firstFrom(rising, wanted) : 0;
      for (let column = 0; column < kept; column++, place++) {
        const label = labels ? labels[place] : column;
        if ((levels[codes[place]] * ratio[label]) / sums[row] >= limit[label]) size++;
        if (labels && reach[label] >= wanted) size--; // which is counted by what the row holds of it
      }
      sizes[row] = size;
      held[row] = own[row] / sums[row] >= limit[targets[row]] ? 1 : 0;
    }
    return { held, sizes };
  }

  // Coverage with Wilson's interval for so many equal samples, and mean size, of weighted test samples.
  function measured({ held, sizes }, weights) {
    let [total, squares, hits, classes] = [0, 0, 0, 0];
    weights.forEach((weight, row) => {
      total += weight;
      squares += weight * weight;
      hits += weight * held[row];
      classes += weight * sizes[row];
    });
    const [share, samples] = [hits / total, (total * total) / squares];
    const shrink = 1 + NORMAL ** 2 / samples;
    const centre = (share + NORMAL ** 2 / (2 * samples)) / shrink;
    const half = (NORMAL / shrink) * Math.sqrt((share * (1 - share)) / samples + NORMAL ** 2 / (4 * samples ** 2));
    return { coverage: share, size: classes / total, interval: [Math.max(0, centre - half), Math.min(1, centre + half)] };
  }

  // By how much coverage may fall short where counts stand for shares, as in set_thresholds.py.
  function shortfall(counts, prior) {
    let [total, short] = [0, 0];
    counts.forEach((count, label) => {
      if (!(count > 0)) return;
      total += prior[label];
      short += prior[label] / (count + 1);
    });
    return short / total;
  }

  // What the held-out samples say under a prior, once for all alphas and methods.
  function prepared({ validation, test }, ratio) {
    return { ratio, validation: totals(validation, ratio), test: totals(test, ratio) };
  }

  // How good the sets are: of all test samples under the prior, with each class alike, and of each shot group.
  function scores({ validation, test }, ready, prior, group, alpha, method) {
    const limit = limits(validation, ready.validation, prior, alpha, method);
    const found = setsOf(test, ready.test, ready.ratio, limit);
    const mixed = Float64Array.from(test.targets, (label) => prior[label] / test.counts[label]);
    const alike = Float64Array.from(test.targets, (label) => (prior[label] > 0 ? 1 / test.counts[label] : 0));
    const only = (name) => mixed.map((weight, row) => (group[test.targets[row]] === name ? weight : 0));
    const parts = [["all", mixed], ["alike", alike], ...["many", "medium", "few"].map((name) => [name, only(name)])];
    const groups = parts.filter(([, weights]) => weights.some((weight) => weight > 0))
      .map(([name, weights]) => ({ name, ...measured(found, weights) }));
    const always = Array.from(limit.keys()).filter((label) => limit[label] === 0);
    const least = 1 - alpha - shortfall(validation.counts, prior);
    return { alpha, method, groups, always, least, limit };
  }

  window.balpoeSets = { load, prepared, scores };
})();
