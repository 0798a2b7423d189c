"""The product's mark as SVG: a still whose drop is what comes out."""

MARK = (
    '<svg viewBox="0 0 32 32" width="28" height="28" aria-hidden="true" fill="none" stroke="currentColor" '
    'stroke-width="2" stroke-linecap="round" stroke-linejoin="round">'
    '<path d="M9 8h6M10 8v4c-3 1-5 4-5 7a7 7 0 0 0 14 0c0-3-2-6-5-7V8"/><path d="M14 6c4-3 11-2 11 6v3"/>'
    '<path d="M25 19c-1.5 2-2.5 3.2-2.5 4.5a2.5 2.5 0 0 0 5 0c0-1.3-1-2.5-2.5-4.5z" fill="currentColor"/></svg>'
)
