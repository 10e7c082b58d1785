// The text editor of presets: bundled by build.sh to static/codemirror.min.js.
export { basicSetup, EditorView } from "codemirror";
export { json } from "@codemirror/lang-json";
export { syntaxHighlighting } from "@codemirror/language";
export { lintGutter, setDiagnostics } from "@codemirror/lint";
export { unifiedMergeView } from "@codemirror/merge";
export { EditorState } from "@codemirror/state";
export { classHighlighter } from "@lezer/highlight";
