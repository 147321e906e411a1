// Who would be called unknown: thresholds that Python found, one for each step of the slider. Names are data.
(() => {
  "use strict";

  const { percent, element, row, drawn } = window.balpoeExplorer.parts;
  const PARTS = [["right", "answered rightly"], ["wrong", "answered wrongly"]];

  // Two distributions of the score, and the threshold above which a sample is called unknown.
  function distributions(part, threshold) {
    const [left, top, width, height] = [44, 24, 300, 170];
    const bins = part.right.length;
    const highest = Math.max(0.01, ...part.right, ...part.wrong);
    const x = (score) => left + width * Math.min(1, Math.max(0, score));
    const y = (share) => top + height * (1 - share / highest);
    const svg = drawn("svg", { viewBox: "0 0 360 266", role: "img" });
    for (const share of [0, highest / 2, highest]) {
      svg.append(drawn("path", { class: "decide-grid", d: `M${x(0)} ${y(share)}H${x(1)}` }));
      svg.append(drawn("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, (100 * share).toFixed(0)));
    }
    for (const score of [0, 0.5, 1]) svg.append(drawn("text", { x: x(score), y: y(0) + 16, "text-anchor": "middle" }, String(score)));
    PARTS.forEach(([name, words], place) => {
      const steps = part[name].map((share, bin) => `V${y(share).toFixed(1)}H${x((bin + 1) / bins).toFixed(1)}`).join("");
      svg.append(drawn("path", { class: `unknown-${name}`, d: `M${x(0)} ${y(0)}${steps}V${y(0)}` }));
      svg.append(drawn("path", { class: `unknown-${name}`, d: `M${left + 150 * place} ${y(0) + 58}h24` }));
      svg.append(drawn("text", { x: left + 150 * place + 29, y: y(0) + 62 }, words));
    });
    svg.append(drawn("path", { class: "unknown-threshold", d: `M${x(threshold).toFixed(1)} ${top - 5}V${y(0)}` }));
    const side = threshold < 0.1 ? "start" : threshold > 0.9 ? "end" : "middle"; // within the drawing
    svg.append(drawn("text", { x: x(threshold), y: top - 9, "text-anchor": side }, "threshold"));
    svg.append(drawn("text", { x: x(0.5), y: y(0) + 34, "text-anchor": "middle" }, "1 less the largest probability"));
    svg.append(drawn("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${top + height / 2}) rotate(-90)` }, "% of the samples"));
    return svg;
  }

  function start(root) {
    const part = (selector) => root.querySelector(selector);
    const slider = part('[data-control="keep"]');
    const own = JSON.parse(part(".unknown-data").textContent);

    function show() {
      const chosen = own.scores[Number(slider.value)];
      const groups = Object.entries(chosen.groups);
      const [, mixed] = groups[0];
      const kept = Number((100 * chosen.keep).toFixed(1));
      const setting = `Keep ${kept} % of the known samples: unknown is what scores above ${chosen.threshold.toFixed(3)}.`;
      const shots = groups.slice(1).map(([name, shares]) => `${percent(shares[0])} % of the ${name}-shot samples`).join(", ");
      const summary = `In the class mix of the held-out samples, ${percent(mixed[0])} % of the test samples are called unknown; ${shots}.`;
      part('[data-setting="keep"]').textContent = setting;
      slider.setAttribute("aria-valuetext", setting);
      part('[data-summary="unknown"]').textContent = summary;
      part("tbody").replaceChildren(...groups.map(([name, shares]) => row([
        element("th", own.rows[name] || `${name}-shot`, { scope: "row" }),
        ...shares.map((share) => element("td", share === null ? "-" : percent(share))),
      ])));
      const drawing = distributions(own, chosen.threshold);
      drawing.setAttribute("aria-label", `How unknown test samples look, answered rightly and wrongly. ${setting}`);
      part("figure").replaceChildren(drawing);
      window.balpoeUnknown = chosen;
    }

    part(".unknown-notes").textContent = own.notes.join(" ");
    slider.addEventListener("input", show);
    show();
  }

  document.querySelectorAll(".unknown").forEach(start);
})();
