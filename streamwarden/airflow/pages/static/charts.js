// Draws the charts of a stream with uPlot, with marks on the time axis. Zoom: drag; back: double click.
"use strict";
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)} G`;
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
    return `${+value.toPrecision(3)}`;
  };
  const write = (unit) => (value) => {
    if (value == null) return "–";
    if (unit === "bytes") return /[kMG]$/.test(short(value)) ? `${short(value)}B` : `${short(value)} B`;
    if (unit === "s" && value >= 120) return value >= 7200 ? `${+(value / 3600).toPrecision(3)} h` : `${+(value / 60).toPrecision(3)} min`;
    return unit === "units" || unit === "rows" ? short(value) : `${short(value)} ${unit}`;
  };
  // Days have 24 hours, and hours 60 minutes: ticks of 10,000 s are no help.
  const TIMES = [1, 2, 5, 10, 15, 30].flatMap((one) => [one, one * 60]).concat([1, 2, 3, 6, 12, 24, 48, 120, 240].map((one) => one * 3600));
  const INCREMENTS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...TIMES.sort((one, other) => one - other)];
  // Most significant part first, on a clock of 24 hours, as all other times here.
  const CLOCK = [
    [86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{YYYY}-{MM}-{DD}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{YYYY}-{MM}-{DD}", null, null, null, 1],
  ];
  let drawn = new Map();
  const read = () => JSON.parse(document.getElementById("chart-data").textContent);
  const columns = (data, chart) => {
    if (!chart.stacked) return [data.times, ...chart.series.map((one) => one.values)];
    // The sum of all parts first, so that smaller sums are drawn over it.
    const sums = chart.series.map((_, number) => data.times.map((_, point) => {
      const parts = chart.series.slice(number).map((one) => one.values[point]);
      return parts.every((part) => part == null) ? null : parts.reduce((sum, part) => sum + (part || 0), 0);
    }));
    return [data.times, ...sums];
  };
  // A line joins the points of a job whose batches are rare, but not those before and after a stop.
  const JOINED = 5;
  const gaps = (plot, _series, _first, _last, found) => {
    const [one, other] = plot.data[0];
    const point = plot.valToPos(other, "x", true) - plot.valToPos(one, "x", true);
    return found.filter(([left, right]) => right - left > JOINED * point);
  };
  let marks = [];
  const drawMarks = (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const mark of marks) {
      const x = plot.valToPos(mark.at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = css(`--${mark.kind}`);
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash(mark.kind === "savepoint" ? [3, 4] : []);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };
  const draw = () => {
    const data = read();
    marks = data.marks;
    for (const plot of drawn.values()) plot.destroy();
    drawn = new Map();
    for (const chart of data.charts) {
      const place = document.querySelector(`[data-chart="${CSS.escape(chart.name)}"] .plot`);
      if (!place) continue;
      const text = write(chart.unit);
      const axis = { stroke: css("--faint"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 } };
      const options = {
        width: place.clientWidth, height: 170, cursor: { sync: { key: "time" } }, legend: { live: true },
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
        axes: [{ ...axis, values: CLOCK, space: 70 }, { ...axis, size: 72, ...(chart.unit === "s" ? { incrs: INCREMENTS } : {}), values: (_, ticks) => ticks.map((one) => (chart.unit === "s" || chart.unit === "bytes" ? text(one) : short(one))) }],
        hooks: { draw: [drawMarks] },
        series: [
          { value: (_, at) => (at == null ? "–" : new Date(at * 1000).toLocaleString("sv")), label: "time" },
          ...chart.series.map((one, number) => ({
            label: one.label, stroke: css(`--c${number}`), width: 1.5, spanGaps: false, gaps,
            points: { show: data.times.length < 400 && one.values.filter((value) => value != null).length < 40, size: 5, fill: css(`--c${number}`) },
            fill: one.fill ? `${css(`--c${number}`)}66` : undefined,
            value: (_plot, _value, _series, point) => text(point == null ? null : (drawn.get(chart.name) && drawn.get(chart.name).parts[number].values[point])),
          })),
        ],
      };
      const plot = new uPlot(options, columns(data, chart), place);
      plot.parts = chart.series;
      drawn.set(chart.name, plot);
    }
  };
  const renew = () => {
    const data = read();
    if (data.charts.length !== drawn.size || data.charts.some((chart) => !drawn.has(chart.name))) {
      // Another chart has begun: its figure comes with the whole page.
      if (data.charts.every((chart) => document.querySelector(`[data-chart="${CSS.escape(chart.name)}"]`))) draw();
      else location.reload();
      return;
    }
    marks = data.marks;
    for (const chart of data.charts) {
      const plot = drawn.get(chart.name);
      plot.parts = chart.series;
      plot.setData(columns(data, chart));
    }
  };
  const resize = () => {
    for (const plot of drawn.values()) {
      const width = plot.root.parentElement.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: 170 });
    }
  };
  document.addEventListener("DOMContentLoaded", draw);
  document.addEventListener("fresh", renew);
  document.addEventListener("theme", () => { if (document.readyState !== "loading") draw(); });
  addEventListener("resize", resize);
})();
