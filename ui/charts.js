// Draws the cards of the Progress tab's charts. Gradio runs this with `element`, `props` and `watch`; the value is JSON:
// [{key, title, sentence, data, layout, config}, ...]. A card is kept by its key and plotly.js redraws it in place, so
// an update neither flickers nor loses the reader's zoom. Only cards on the screen are drawn.
const grid = element.querySelector('.sh-charts');
const cards = new Map();

function draw(card) {
  if (!card.isOnScreen || card.drawn === card.wanted) return;
  const { data, layout, config } = JSON.parse(card.wanted);
  Plotly.react(card.plot, data, layout, config);
  card.drawn = card.wanted;
}

const onScreen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = cards.get(entry.target.dataset.key);
    if (!card) continue;
    card.isOnScreen = entry.isIntersecting;
    draw(card);
  }
}, { rootMargin: '200px' });

function add(key) {
  const box = document.createElement('article');
  const [title, sentence, plot] = ['h4', 'p', 'div'].map((tag) => box.appendChild(document.createElement(tag)));
  box.className = 'sh-chart';
  box.dataset.key = key;
  plot.className = 'sh-plot';
  const card = { box, title, sentence, plot, isOnScreen: false, drawn: '', wanted: '' };
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
    card.wanted = JSON.stringify(figure);
    if (grid.children[index] !== card.box) grid.insertBefore(card.box, grid.children[index] || null);
    draw(card);
  });
}

watch('value', update);
update();
