// Send the one-time token of the link's fragment by POST, and take it out of the history.
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("token").value = token;
  document.getElementById("login").submit();
}
