"""An HTTP client of the service."""

try:
    import httpx
except ModuleNotFoundError as error:
    raise ValueError("this command needs httpx; install it with pip install 'dualnet[serve]'") from error


def open_client(url: str, flag: str, token: str | None, seconds: float) -> httpx.Client:
    """Requests have the token, and may take so long. Raises ValueError, with the flag, if the URL is none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=seconds, trust_env=False)
        if client.base_url.scheme in ("http", "https") and client.base_url.host:
            return client
    except httpx.InvalidURL:
        pass
    raise ValueError(f"{flag} {url}: give an address such as http://127.0.0.1:8000")
