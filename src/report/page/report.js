// Draws the charts of the element #data. The rest of the page works without this script.
(() => {
  'use strict';

  const root = document.documentElement;
  let data = JSON.parse(document.getElementById('data').textContent);
  const dashes = [[], [7, 4], [2, 3]];
  const drawn = new Map();  // id -> Chart

  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const faded = (colour) => colour + 'a6';

  function number(value) {
    if (value === 0) return '0';
    const size = Math.abs(value);
    if (size >= 1e7 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
    if (size >= 1e3) return value.toLocaleString('en-US', {maximumFractionDigits: size >= 1e5 ? 0 : 1});
    return String(Number(value.toPrecision(4)));
  }

  // --- the horizontal axis: steps, epochs or time ---

  function interpolate([xs, ys], x) {
    if (x <= xs[0]) return xs.length > 1 && xs[0] > 0 && ys[0] > 0 ? ys[0] * x / xs[0] : ys[0];
    let low = 0;
    let high = xs.length - 1;
    if (x >= xs[high]) return ys[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]);
  }

  const every = (name) => data.runs.length > 0 && data.runs.every((run) => run[name][0].length > 0);
  const units = [[3 * 3600, 'hours', 3600], [180, 'minutes', 60], [0, 'seconds', 1]];
  const unitOf = (seconds) => units.find(([least]) => seconds >= least);

  function axesOf() {
    const longest = Math.max(0, ...data.runs.map((run) => run.times[1].at(-1) || 0));
    const [, timeUnit, timeScale] = unitOf(longest);
    return [
      {name: 'epoch', label: 'Epochs', title: 'epoch', there: every('epochs'),
       map: (x, run) => interpolate(data.runs[run].epochs, x)},
      {name: 'step', label: 'Steps', title: 'step', there: data.charts.some((chart) => chart.axis === 'step'),
       map: (x) => x},
      {name: 'time', label: 'Time', title: timeUnit, there: every('times') && longest > 0,
       map: (x, run) => interpolate(data.runs[run].times, x) / timeScale},
    ].filter((axis) => axis.there);
  }
  let axes = axesOf();
  let axis = axes[0];

  function placed(chart) {
    if (chart.axis === 'step') return {title: axis.title, map: axis.map, whole: axis.name !== 'time'};
    if (chart.axis === 'seconds') {
      const [, title, scale] = unitOf(Math.max(0, ...chart.series.map((one) => one.x.at(-1) || 0)));
      return {title, map: (x) => x / scale};
    }
    return {title: chart.xLabel, map: (x) => x, whole: chart.axis === 'number'};
  }

  // --- one chart ---

  function lines(chart) {
    const {map} = placed(chart);
    const stacked = chart.kind === 'stack';
    return chart.series.map((one, i) => {
      const colour = style('--c' + one.colour);
      return {
        label: one.label,
        data: one.x.map((x, i) => ({x: map(x, one.run), y: one.y[i]})),
        borderColor: one.thin ? faded(colour) : colour,
        backgroundColor: stacked ? faded(colour) : colour,
        borderWidth: stacked ? 1.2 : one.thin ? 1 : 2,
        borderDash: dashes[one.dash],
        clip: 6,  // points on the frame are drawn completely
        pointRadius: chart.marked || one.x.length === 1 ? 3.5 : 0,
        pointHoverRadius: 4,
        fill: stacked && (i === 0 ? 'origin' : '-1'),
        tension: 0,
      };
    });
  }

  // Chart.js shows the style of the points in the legend, which have no dashes.
  function legend(drawing) {
    return Chart.defaults.plugins.legend.labels.generateLabels(drawing).map(
      (item) => ({...item, lineDash: drawing.data.datasets[item.datasetIndex].borderDash || []}));
  }

  function bars(chart) {
    return chart.series.map((one) => {
      const values = chart.categories.map(() => null);
      one.x.forEach((x, i) => { values[x] = one.y[i]; });
      return {label: one.label, data: values, backgroundColor: style('--c' + one.colour), borderRadius: 3, maxBarThickness: 44};
    });
  }

  function axisOptions(title, more) {
    return Object.assign({
      title: {display: title !== '', text: title, color: style('--soft')},
      grid: {color: style('--grid'), borderColor: style('--line')},
      ticks: {color: style('--soft'), maxRotation: 0, autoSkipPadding: 18},
    }, more);
  }

  // A single value has no range: it gets the middle of the axis.
  function valueRange(chart) {
    const values = chart.series.flatMap((one) => one.y);
    const least = values.reduce((a, b) => Math.min(a, b), Infinity);
    const greatest = values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (chart.kind !== 'lines' || least !== greatest || least === 0) return {};
    return least > 0 ? {min: 0, max: 2 * least} : {min: 2 * least, max: 0};
  }

  // From 0 if the run begins there, to the end of the run.
  function placeRange(chart) {
    if (chart.axis === 'number') {  // counts: few points, none of them on the frame
      const most = Math.max(...chart.series.flatMap((one) => one.x));
      return {min: 0, max: Math.ceil(most * 1.05)};
    }
    const {map} = placed(chart);
    const ends = chart.series.flatMap((one) => [map(one.x[0], one.run), map(one.x.at(-1), one.run)]);
    const [least, greatest] = [Math.min(...ends), Math.max(...ends)];
    return least < greatest ? {min: least < greatest / 4 ? Math.min(0, least) : least, max: greatest} : {};
  }

  function options(chart, log) {
    const isBars = chart.kind === 'bars';
    const stacked = chart.kind !== 'lines';
    const valueAxis = axisOptions(isBars ? chart.yLabel : '', {
      type: log ? 'logarithmic' : 'linear', stacked, beginAtZero: chart.fromZero && !log,
      ...(log ? {} : valueRange(chart)),
    });
    valueAxis.ticks.callback = number;
    const placeAxis = isBars ? axisOptions('', {stacked})
      : axisOptions(placed(chart).title, {type: 'linear', ...placeRange(chart)});
    if (!isBars) placeAxis.ticks.callback = number;
    if (placed(chart).whole) placeAxis.ticks.precision = 0;
    return {
      animation: false, responsive: true, maintainAspectRatio: false, indexAxis: isBars ? 'y' : 'x',
      parsing: isBars ? undefined : false, normalized: false,
      interaction: isBars ? {mode: 'index', axis: 'y', intersect: false} : {mode: 'nearest', axis: 'x', intersect: false},
      scales: isBars ? {x: valueAxis, y: placeAxis} : {x: placeAxis, y: valueAxis},
      plugins: {
        legend: {
          display: chart.series.length > 1 || data.runs.length > 1, position: 'bottom',
          labels: {color: style('--text'), usePointStyle: true, pointStyle: stacked ? 'rectRounded' : 'line',
                   pointStyleWidth: stacked ? undefined : 26, boxWidth: 26, padding: 12, generateLabels: legend},
        },
        tooltip: {
          callbacks: {
            title: (items) => isBars ? items[0].label : placed(chart).title + ' ' + number(items[0].parsed.x),
            label: (item) => ' ' + item.dataset.label + ': ' + number(item.parsed[isBars ? 'x' : 'y']),
          },
        },
      },
    };
  }

  const mark = {
    id: 'mark',
    afterDraw: ({canvas, data, legend}) => {
      canvas.dataset.drawn = data.datasets.length;
      canvas.dataset.dashed = (legend?.legendItems || []).filter((item) => item.lineDash.length > 0).length;
    },
  };

  function draw(chart) {
    const canvas = document.querySelector('canvas[data-chart="' + CSS.escape(chart.id) + '"]');
    const old = drawn.get(chart.id);
    const hidden = old ? old.data.datasets.map((_, i) => !old.isDatasetVisible(i)) : [];
    if (old) old.destroy();
    const isBars = chart.kind === 'bars';
    if (isBars) canvas.parentNode.style.height = Math.max(220, 110 + 46 * chart.categories.length) + 'px';
    const made = new Chart(canvas, {
      type: isBars ? 'bar' : 'line',
      data: isBars ? {labels: chart.categories, datasets: bars(chart)} : {datasets: lines(chart)},
      options: options(chart, chart.log),
      plugins: [mark],
    });
    hidden.forEach((is, i) => { if (is) made.hide(i); });
    drawn.set(chart.id, made);
  }

  const drawAll = () => data.charts.forEach(draw);

  // --- controls ---

  function button(parent, text, title, click) {
    const made = document.createElement('button');
    made.type = 'button';
    made.textContent = text;
    made.title = title;
    made.addEventListener('click', () => click(made));
    parent.append(made);
    return made;
  }

  function addTools(chart) {
    const tools = document.querySelector('#chart-' + CSS.escape(chart.id) + ' .tools');
    const positive = chart.series.every((one) => one.y.every((y) => y > 0));
    if (chart.kind === 'lines' && positive) {
      const log = button(tools, 'log', 'logarithmic vertical axis', () => {
        chart.log = !chart.log;
        log.setAttribute('aria-pressed', chart.log);
        draw(chart);
      });
      log.setAttribute('aria-pressed', chart.log === true);
    }
    button(tools, 'PNG', 'save as a picture', () => {
      const link = document.createElement('a');
      link.download = chart.id + '.png';
      link.href = drawn.get(chart.id).toBase64Image();
      link.click();
    });
  }

  function addAxes() {
    const parent = document.getElementById('axis');
    if (!parent || axes.length < 2) return;
    const buttons = axes.map((choice) => button(parent, choice.label, 'horizontal axis', (pressed) => {
      axis = choice;
      buttons.forEach((one) => one.setAttribute('aria-pressed', one === pressed));
      data.charts.filter((chart) => chart.axis === 'step').forEach(draw);
    }));
    buttons.forEach((one, i) => one.setAttribute('aria-pressed', axes[i] === axis));
  }

  // --- light and dark ---

  const prefersDark = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : prefersDark.matches;
  const theme = document.getElementById('theme');

  function applyTheme(name) {
    if (name) root.dataset.theme = name; else delete root.dataset.theme;
    theme.textContent = isDark() ? 'Light' : 'Dark';
    drawAll();
  }

  theme.hidden = false;
  theme.addEventListener('click', () => applyTheme(isDark() ? 'light' : 'dark'));
  prefersDark.addEventListener('change', () => applyTheme(root.dataset.theme));
  // Print in light mode, then restore the chosen one.
  let chosen;
  addEventListener('beforeprint', () => { chosen = root.dataset.theme || ''; applyTheme('light'); });
  addEventListener('afterprint', () => applyTheme(chosen));

  const asked = new URLSearchParams(location.search).get('theme') || location.hash.replace('#theme=', '');
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  addAxes();
  data.charts.forEach(addTools);
  applyTheme(asked === 'dark' || asked === 'light' ? asked : '');
  root.dataset.charts = drawn.size;

  // --- following runs: `lockstep report --follow` serves this page ---

  // Replaces the content of the page, and keeps what the reader has chosen.
  function replace(text) {
    const next = new DOMParser().parseFromString(text, 'text/html');
    const content = next.getElementById('data');
    if (!content) return;
    const hidden = new Map([...drawn].map(([id, chart]) => [id, chart.data.datasets
      .filter((_, i) => !chart.isDatasetVisible(i)).map((one) => one.label)]));
    const logs = new Set(data.charts.filter((chart) => chart.log).map((chart) => chart.id));
    const opened = [...document.querySelectorAll('details')].map((one) => one.open);
    const {scrollX, scrollY} = window;
    drawn.forEach((chart) => chart.destroy());
    drawn.clear();
    data = JSON.parse(content.textContent);
    document.title = next.title;
    for (const part of ['main', '.subtitle', 'h1']) {
      document.querySelector(part).innerHTML = next.querySelector(part).innerHTML;
    }
    document.querySelectorAll('details').forEach((one, i) => { if (i in opened) one.open = opened[i]; });
    const name = axis && axis.name;
    axes = axesOf();
    axis = axes.find((one) => one.name === name) || axes[0];
    data.charts.forEach((chart) => {
      chart.log = logs.has(chart.id) && chart.series.every((one) => one.y.every((y) => y > 0));
    });
    addAxes();
    data.charts.forEach(addTools);
    drawAll();
    hidden.forEach((labels, id) => {
      const chart = drawn.get(id);
      if (chart) chart.data.datasets.forEach((one, i) => { if (labels.includes(one.label)) chart.hide(i); });
    });
    root.dataset.charts = drawn.size;
    scrollTo(scrollX, scrollY);
  }

  const live = document.getElementById('live');
  if (live) {
    const period = 2000;
    let version = live.dataset.version;
    const fetched = async (place) => {
      const answer = await fetch(place, {cache: 'no-store'});
      if (!answer.ok) throw new Error(answer.status);
      return answer.text();
    };
    const look = async () => {
      try {
        const newest = await fetched('version');
        if (newest !== version) {
          replace(await fetched('.'));
          version = newest;
          root.dataset.updates = Number(root.dataset.updates || 0) + 1;
        }
        live.textContent = 'live';
        live.classList.remove('lost');
      } catch (error) {
        live.textContent = 'not connected';
        live.classList.add('lost');
      }
      setTimeout(look, period);
    };
    setTimeout(look, period);
  }
})();
