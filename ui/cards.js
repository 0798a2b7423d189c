// The buttons of a student's card: renaming asks for a name, deleting asks first, and each becomes a `select` event
// {model, action, name}. Gradio runs this with `element` and `trigger`.
element.addEventListener('click', async (event) => {
  const button = event.target.closest('button[data-do]');
  if (!button) return;
  const { do: action, model, name } = button.dataset;
  if (action === 'compare') trigger('select', { model, action, name });
  else if (action === 'delete') {
    const text = 'Its files are removed for good. Comparisons with it keep their texts; its job stays.';
    if (await stillhouse.ask(name, 'Delete this student?', text, [['Delete it', 'yes', 'danger']]))
      trigger('select', { model, action, name });
  } else rename(button, model, name);
});

// A dialog with one field; Escape and Cancel leave the name as it is.
function rename(button, model, name) {
  const dialog = document.createElement('dialog');
  dialog.className = 'sh-ask';
  dialog.setAttribute('aria-labelledby', 'sh-rename-title');
  const form = dialog.appendChild(document.createElement('form'));
  form.method = 'dialog';
  const title = form.appendChild(document.createElement('h2'));
  title.id = 'sh-rename-title';
  title.textContent = 'Rename this student';
  const label = form.appendChild(document.createElement('label'));
  label.textContent = 'Name ';
  const input = label.appendChild(document.createElement('input'));
  Object.assign(input, { value: name, maxLength: 200, required: true, name: 'name' });
  const row = form.appendChild(document.createElement('div'));
  for (const [text, value, css] of [['Rename', 'yes', 'primary'], ['Leave it', '', '']]) {
    const made = row.appendChild(document.createElement('button'));
    Object.assign(made, { textContent: text, value, className: `sh-do ${css}`, formNoValidate: !value });
  }
  dialog.addEventListener('close', () => {
    const wanted = input.value.trim();
    if (dialog.returnValue === 'yes' && wanted && wanted !== name) trigger('select', { model, action: 'rename', name: wanted });
    dialog.remove();
    button.focus();
  });
  (document.querySelector('.gradio-container') || document.body).append(dialog);
  dialog.showModal();
  input.select();
}
