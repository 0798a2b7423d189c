// What the page does to HTML that is read again and again: put the new in place of the old without losing the reader's
// focus, selection, scrolling or open details, and ask before something that cannot be undone. No library: these pages
// have no build step, and the fifty lines are all that is needed of one.
Object.assign(window.stillhouse, {
  // `element` is a gr.HTML whose template is one empty box; its value becomes the box's content, now and later.
  live(element, props, watch) {
    const box = element.querySelector('.sh-live');
    const draw = () => {
      const wanted = document.createElement('template');
      wanted.innerHTML = props.value || '';
      this.morphChildren(box, wanted.content);
    };
    watch('value', draw);
    draw();
  },

  morph(node, wanted) {
    const kept = node.tagName === 'DETAILS' ? ['open'] : [];
    for (const { name } of [...node.attributes])
      if (!wanted.hasAttribute(name) && !kept.includes(name)) node.removeAttribute(name);
    for (const { name, value } of wanted.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    this.morphChildren(node, wanted);
  },

  // Elements with the same data-key are the same thing; others are matched by their place.
  morphChildren(node, wanted) {
    const known = new Map([...node.children].filter((one) => one.dataset.key).map((one) => [one.dataset.key, one]));
    let current = node.firstChild;
    for (const next of [...wanted.childNodes]) {
      const key = next.dataset?.key;
      let kept = key ? known.get(key) : current;
      if (kept && (kept.nodeName !== next.nodeName || kept.dataset?.key !== key)) kept = null;
      if (!kept) node.insertBefore(next, current);
      else {
        if (kept === current) current = current.nextSibling;
        else node.insertBefore(kept, current);
        if (kept.nodeType === Node.ELEMENT_NODE) this.morph(kept, next);
        else if (kept.data !== next.data) kept.data = next.data;
      }
    }
    while (current) {
      const after = current.nextSibling;
      current.remove();
      current = after;
    }
  },

  // Asks about the job `name` in a dialog; answers the chosen value, or null for none. `choices` are [label, value, css].
  ask(name, title, text, choices) {
    const dialog = document.createElement('dialog');
    dialog.className = 'sh-ask';
    dialog.setAttribute('aria-labelledby', 'sh-ask-title');
    const [heading, job, sentence, row] = ['h2', 'p', 'p', 'div'].map((tag) => dialog.appendChild(document.createElement(tag)));
    heading.id = 'sh-ask-title';
    job.className = 'sh-about';
    job.dir = 'auto';
    job.textContent = name;
    heading.textContent = title;
    sentence.textContent = text;
    for (const [label, value, css] of [...choices, ['Leave it', '', '']]) {
      const button = row.appendChild(document.createElement('button'));
      button.type = 'button';
      button.className = `sh-do ${css}`;
      button.textContent = label;
      button.addEventListener('click', () => dialog.close(value));
    }
    (document.querySelector('.gradio-container') || document.body).append(dialog);
    dialog.showModal();
    row.lastChild.focus();
    return new Promise((answer) =>
      dialog.addEventListener('close', () => {
        dialog.remove();
        answer(dialog.returnValue || null);
      }));
  },

  questions: {
    cancel: ['Cancel this job?', 'It stops at its next step and makes no student. Pause it instead to go on later.',
      [['Cancel the job', 'yes', 'danger']]],
    delete: ['Delete this job?', 'Its curves, events and checkpoints are removed for good, and its student with them.',
      [['Delete it', 'yes', 'danger']]],
    retry: ['Run this job again?', 'From its last checkpoint, or from nothing: that deletes its checkpoints and curves.',
      [['From the checkpoint', 'checkpoint', 'primary'], ['From nothing', 'clean', '']]],
  },

  // Buttons with data-action and data-job, and rows with data-job, become `select` events {job, action, choice}.
  jobButtons(element, trigger) {
    element.addEventListener('click', async (event) => {
      const button = event.target.closest('button[data-action]');
      if (button) {
        const { action, job, name } = button.dataset;
        const question = this.questions[action];
        const choice = question ? await this.ask(name, ...question) : 'yes';
        if (choice) trigger('select', { job, action, choice });
        return;
      }
      const row = event.target.closest('tr[data-job]');
      if (!row || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      trigger('select', { job: row.dataset.job, action: 'open', choice: 'yes' });
    });
  },
});

// CodeMirror's boxes scroll, but only a mouse can reach those that may not be written in, and no box has a name.
let looksAtEditors = false;
new MutationObserver(() => {
  if (looksAtEditors) return;
  looksAtEditors = true;
  requestAnimationFrame(() => {
    looksAtEditors = false;
    for (const content of document.querySelectorAll('.cm-content:not([tabindex])')) {
      content.tabIndex = 0;
      content.setAttribute('aria-label', 'The job as JSON');
    }
  });
}).observe(document.documentElement, { childList: true, subtree: true });
