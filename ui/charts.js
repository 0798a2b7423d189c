// Draws the cards of the Progress tab's charts. Gradio runs this with `element`, `props` and `watch`; the value is JSON:
// [{key, title, sentence, data, layout, config, file}, ...]. A card is kept by its key and plotly.js redraws it in place,
// so an update neither flickers nor loses the reader's zoom. Only cards on the screen are drawn.
const grid = element.querySelector('.sh-charts');
const cards = new Map();
let weight = 0;

// A running mean that starts at the first value rather than at zero (Adam's correction of its means, Kingma and Ba).
function smoothed(values) {
  let mean = 0, share = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return mean / share;
  });
}

// Noisy curves get a pale copy of their own values behind the smoothed one; stacks, bars and few points stay.
function shownTraces(data) {
  if (!weight) return data;
  return data.flatMap((trace) => {
    const hasManyPoints = trace.mode === 'lines' || trace.marker?.maxdisplayed;
    if (trace.type !== 'scatter' || !hasManyPoints || trace.stackgroup) return [trace];
    const pale = { ...trace, mode: 'lines', opacity: 0.28, showlegend: false, hoverinfo: 'skip', hovertemplate: null };
    return [pale, { ...trace, y: smoothed(trace.y) }];
  });
}

function draw(card) {
  if (!card.isOnScreen || card.drawn === card.wanted + weight) return;
  const { data, layout, config } = JSON.parse(card.wanted);
  Plotly.react(card.plot, shownTraces(data), layout, config);
  card.drawn = card.wanted + weight;
}

const onScreen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = cards.get(entry.target.dataset.key);
    if (!card) continue;
    card.isOnScreen = entry.isIntersecting;
    draw(card);
  }
}, { rootMargin: '200px' });

function download(name, url) {
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

// One line per step, one column per curve, the values as they were measured; empty where a curve has none.
function saveCsv(card) {
  const { data, layout, file } = JSON.parse(card.wanted);
  const columns = data.map((trace) => new Map(trace.x.map((x, i) => [x, trace.y[i]])));
  const steps = [...new Set(data.flatMap((trace) => trace.x))].sort((a, b) => a - b);
  const head = [layout.xaxis.title.text, ...data.map((trace) => trace.meta)];
  const lines = [head.map((name) => `"${name.replaceAll('"', '""')}"`)];
  for (const step of steps) lines.push([step, ...columns.map((column) => column.get(step) ?? '')]);
  const url = URL.createObjectURL(new Blob([lines.map((line) => line.join(',')).join('\r\n') + '\r\n'], { type: 'text/csv' }));
  download(`${file}.csv`, url);
  URL.revokeObjectURL(url);
}

// As shown, zoom and smoothing included, on white: the page's own colours come from its style, which a file has not.
async function savePng(card) {
  const { layout, file } = JSON.parse(card.wanted);
  const shown = card.plot.layout || layout;
  const margin = { ...layout.margin, t: layout.margin.t + 34 };
  const title = { text: card.title.textContent, x: 0.02, y: 0.97, font: { size: 15, color: '#292420' } };
  const font = { ...layout.font, color: '#4d4741' };
  const paper = { ...layout, xaxis: { ...layout.xaxis, range: shown.xaxis.range, autorange: false }, title, margin, font,
    yaxis: { ...layout.yaxis, range: shown.yaxis.range, autorange: false }, paper_bgcolor: '#fff', plot_bgcolor: '#fff' };
  const figure = { data: card.plot.data || JSON.parse(card.wanted).data, layout: paper };
  download(`${file}.png`, await Plotly.toImage(figure, { format: 'png', width: 720, height: 400, scale: 2 }));
}

function add(key) {
  const box = document.createElement('article');
  const head = box.appendChild(document.createElement('header'));
  const title = head.appendChild(document.createElement('h3'));
  const [sentence, plot] = ['p', 'div'].map((tag) => box.appendChild(document.createElement(tag)));
  box.className = 'sh-chart';
  box.dataset.key = key;
  plot.className = 'sh-plot';
  const card = { box, title, sentence, plot, buttons: [], isOnScreen: false, drawn: '', wanted: '' };
  for (const [text, save] of [['CSV', saveCsv], ['PNG', savePng]]) {
    const button = head.appendChild(document.createElement('button'));
    Object.assign(button, { type: 'button', className: 'sh-do', textContent: text });
    button.addEventListener('click', () => save(card));
    card.buttons.push(button);
  }
  cards.set(key, card);
  onScreen.observe(box);
  return card;
}

function remove(key) {
  const { box, plot } = cards.get(key);
  onScreen.unobserve(box);
  Plotly.purge(plot);
  box.remove();
  cards.delete(key);
}

function update() {
  const charts = JSON.parse(props.value || '[]');
  const keys = new Set(charts.map((chart) => chart.key));
  for (const key of [...cards.keys()]) if (!keys.has(key)) remove(key);
  charts.forEach(({ key, title, sentence, ...figure }, index) => {
    const card = cards.get(key) || add(key);
    card.title.textContent = title;
    card.sentence.textContent = sentence;
    card.plot.setAttribute('role', 'figure');
    card.plot.setAttribute('aria-label', `Chart: ${title}. ${sentence}`);
    for (const button of card.buttons) button.setAttribute('aria-label', `Download as ${button.textContent}: ${title}`);
    card.wanted = JSON.stringify(figure);
    if (grid.children[index] !== card.box) grid.insertBefore(card.box, grid.children[index] || null);
    draw(card);
  });
}

window.stillhouse.smooth = (value) => {
  weight = value;
  for (const card of cards.values()) draw(card);
};
watch('value', update);
update();
