// The divergence view's tokens: hover, tap, focus and arrow keys show both models' most probable tokens in the panel.
// Gradio runs this with `element`; its content is replaced whenever a reading comes. Everything is written as text.
(() => {
  const reading = () => element.querySelector('.sh-reading');
  let read = null, tokens = [];

  function data() {
    const now = reading()?.dataset.tokens;
    if (now !== read) [read, tokens] = [now, now ? JSON.parse(now) : []];
    return tokens;
  }

  function cell(row, tag, text, css) {
    const made = row.appendChild(document.createElement(tag));
    made.textContent = text;
    if (css) made.className = css;
    return made;
  }

  // White space alone would be invisible.
  const visible = (text) => (text.trim() ? text : text.replace(/ /g, '␣').replace(/\n/g, '⏎').replace(/\t/g, '⇥'));
  const percent = (share) => (share >= 0.0005 ? `${(100 * share).toFixed(1)} %` : '< 0.1 %');

  function table(title, top, said) {
    const made = document.createElement('table');
    cell(made, 'caption', title);
    for (const [text, share] of top) {
      const row = made.insertRow();
      cell(row, 'th', visible(text), text === said ? 'said' : '').scope = 'row';
      row.firstChild.dir = 'auto';
      const bar = row.insertCell();
      bar.className = 'bar';
      bar.appendChild(document.createElement('i')).style.width = `${100 * share}%`;
      cell(row, 'td', percent(share));
    }
    return made;
  }

  function show(option) {
    const panel = reading().querySelector('.sh-detail');
    const [text, kl, p, q, teacherToken, mismatch, teacherTop, studentTop] = data()[option.dataset.i];
    for (const other of reading().querySelectorAll('[aria-selected="true"]')) other.setAttribute('aria-selected', 'false');
    option.setAttribute('aria-selected', 'true');
    const head = document.createElement('p');
    cell(head, 'b', `Token ${Number(option.dataset.i) + 1}: `);
    cell(head, 'bdi', visible(text), 'said');
    cell(head, 'span', ` KL ${kl.toFixed(3)} · teacher ${percent(p)} · student ${percent(q)}`);
    if (mismatch) {
      cell(head, 'span', ' · the teacher would say ');
      cell(head, 'bdi', visible(teacherToken), 'said');
    }
    const both = document.createElement('div');
    both.className = 'sh-both';
    both.append(table('Teacher', teacherTop, text), table('Student', studentTop, text));
    panel.replaceChildren(head, both);
  }

  function focus(option) {
    if (!option) return;
    for (const other of reading().querySelectorAll('[role=option][tabindex="0"]')) other.tabIndex = -1;
    option.tabIndex = 0;
    option.focus();
    option.scrollIntoView({ block: 'nearest' });
  }

  const optionOf = (event) => event.target.closest?.('[role=option]');
  element.addEventListener('pointerover', (event) => optionOf(event) && show(optionOf(event)));
  element.addEventListener('focusin', (event) => optionOf(event) && show(optionOf(event)));
  element.addEventListener('click', (event) => {
    const jump = event.target.closest('[data-jump]');
    focus(jump ? reading().querySelector(`[data-i="${jump.dataset.jump}"]`) : optionOf(event));
  });
  element.addEventListener('keydown', (event) => {
    const option = optionOf(event);
    if (!option) return;
    const list = option.parentElement;
    const next = {
      ArrowRight: option.nextElementSibling, ArrowDown: option.nextElementSibling,
      ArrowLeft: option.previousElementSibling, ArrowUp: option.previousElementSibling,
      Home: list.firstElementChild, End: list.lastElementChild,
    };
    if (!(event.key in next)) return;
    event.preventDefault();
    focus(next[event.key]);
  });
})();
