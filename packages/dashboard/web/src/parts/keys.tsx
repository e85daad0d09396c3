/** Keys that do something on a page, and the list of them that ? shows. */
import { useEffect, useRef, useState } from "preact/hooks";

export interface Key {
  keys: string[];
  does: string;
  act: (event: KeyboardEvent) => void;
  /** Also while the reader is typing. */
  whileTyping?: boolean;
}

export function useKeys(keys: Key[]): { open: boolean; close: () => void } {
  const [open, setOpen] = useState(false);
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const typing = isTyping(event.target);
      if (event.key === "?" && !typing) {
        event.preventDefault();
        setOpen((before) => !before);
        return;
      }
      const found = latest.current.find((key) => key.keys.includes(event.key) && (!typing || key.whileTyping));
      found?.act(event);
    };
    addEventListener("keydown", hear);
    return () => removeEventListener("keydown", hear);
  }, []);
  return { open, close: () => setOpen(false) };
}

export function KeyHelp({ keys, open, close }: { keys: Key[]; open: boolean; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
  }, [open]);
  return (
    <dialog ref={dialog} onClose={close} aria-label="Keyboard shortcuts on this page">
      <h2>Keys</h2>
      <dl class="keys">
        {[...keys, { keys: ["?"], does: "show or hide this list" }].map((key) => (
          <div key={key.does}>
            <dt>{key.keys.map((name) => <kbd key={name}>{NAMES[name] ?? name}</kbd>)}</dt>
            <dd>{key.does}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={close}>Close</button>
    </dialog>
  );
}

const NAMES: Record<string, string> = { ArrowLeft: "←", ArrowRight: "→", Escape: "Esc" };

function isTyping(target: EventTarget | null): boolean {
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "range", "button"].includes(target.type);
  return target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;
}
