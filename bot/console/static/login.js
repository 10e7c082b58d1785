// Post the one-time token from the URL's fragment, and remove it from the browser history.
const next = document.getElementById("next");
if (next.value) localStorage.next = next.value;  // for a link opened in another tab
else next.value = localStorage.next || "";
const logIn = () => {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", location.pathname);
  document.getElementById("token").value = token;
  document.getElementById("login").submit();
};
addEventListener("hashchange", logIn);
logIn();
