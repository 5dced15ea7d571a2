//! Where a run's metrics can be read over HTTP: `/metrics` for Prometheus, `/healthz` for whoever restarts what does not answer.
//!
//! It has threads of its own, and takes from the run nothing but a copy of its [`Board`]. Whoever is slow, silent or hostile is cut off:
//! connections, the bytes of a request and the time for it have bounds, and one that is not served in time waits at the system's
//! expense. It does not know what the numbers mean.

use crate::{Board, Exposition};
use rustix::net::Shutdown;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// So many requests are served at a time; others wait to be accepted.
const MOST_SERVED: usize = 8;
/// The longest request, headers included. *Units*: bytes.
const LONGEST_REQUEST: usize = 8 * 1024;
const MOST_HEADERS: usize = 64;
/// For all of a request, and then for all of its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket that listens for scrapers; nobody is served yet.
#[derive(Debug)]
pub struct ScrapeSocket {
    listener: TcpListener,
    addr: SocketAddr,
}

impl ScrapeSocket {
    /// Takes an address; port 0 is a free one.
    ///
    /// *Errors*: of the system; it is in use, or not this host's.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        Ok(Self { listener, addr })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Begins to serve what stands on a board. *Errors*: the system gives no thread.
    pub fn serve(self, board: Arc<Board>) -> io::Result<ScrapeServer> {
        let ends = Arc::new(AtomicBool::new(false));
        let (listener, ended) = (Arc::new(self.listener), Arc::clone(&ends));
        let accepting = Arc::clone(&listener);
        let work = move || accept(&accepting, &ended, &board);
        let thread = std::thread::Builder::new().name("scrape".into()).spawn(work)?;
        Ok(ScrapeServer { listener, ends, thread: Some(thread) })
    }
}

/// Serves scrapers until it is dropped.
#[derive(Debug)]
pub struct ScrapeServer {
    listener: Arc<TcpListener>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ScrapeServer {
    /// *Blocks* for a moment: answers that are on their way are not waited for.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // It wakes whoever accepts.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How many are being served.
#[derive(Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A place of one who is being served.
struct Place(Arc<Places>);

impl Places {
    /// *Blocks* until there is one, which takes no longer than the patience with those who have them.
    fn take(self: &Arc<Self>) -> Place {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= MOST_SERVED;
        let mut taken = self.freed.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Place(Arc::clone(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

fn accept(listener: &TcpListener, ends: &AtomicBool, board: &Arc<Board>) {
    let places = Arc::new(Places::default());
    loop {
        let place = places.take();
        let come = listener.accept();
        if ends.load(Ordering::Acquire) {
            return;
        }
        match come {
            Ok((stream, from)) => {
                let board = Arc::clone(board);
                let work = move || {
                    let _place = place;
                    // It went away, or was cut off: its own affair.
                    if let Err(error) = serve(stream, &board) {
                        tracing::debug!(%from, %error, "a scraper was not served");
                    }
                };
                // Without a thread this one is not served.
                let _ = std::thread::Builder::new().name("scraper".into()).spawn(work);
            }
            // Out of descriptors, or it went away before it was accepted: nothing is gained by asking again at once.
            Err(error) => {
                tracing::debug!(%error, "no scraper could be accepted");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn serve(mut stream: TcpStream, board: &Board) -> io::Result<()> {
    let head = read_head(&mut stream, Instant::now() + PATIENCE)?;
    let answer = Answer::to(&head, board);
    write_all(&mut stream, &answer.bytes(), Instant::now() + PATIENCE)?;
    // What the other side still says is not read: a reset could overtake the answer, so it is told first that there is no more.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    stream.set_read_timeout(Some(PATIENCE / 4))?;
    let _ = stream.read(&mut [0; 512]);
    Ok(())
}

/// Reads up to the end of the headers. *Errors*: it takes too long, is too long, or ends before.
fn read_head(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => head.extend_from_slice(&part[..read]),
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.len() > LONGEST_REQUEST {
            return Ok(head);
        }
    }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

/// *Errors*: there is no time left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
    /// Whether only the headers were asked for.
    has_body: bool,
}

impl Answer {
    fn to(head: &[u8], board: &Board) -> Self {
        const PLAIN: &str = "text/plain; charset=utf-8";
        let plain =
            |status, body: &str| Self { status, content_type: PLAIN, body: body.to_owned(), has_body: true };
        if head.len() > LONGEST_REQUEST {
            return plain("431 Request Header Fields Too Large", "too long\n");
        }
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let (Ok(httparse::Status::Complete(_)), Some(method), Some(target)) =
            (request.parse(head), request.method, request.path)
        else {
            return plain("400 Bad Request", "no HTTP request\n");
        };
        let accept = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
        let accept = accept.and_then(|header| std::str::from_utf8(header.value).ok());
        let path = target.split('?').next().unwrap_or_default();
        let has_body = match method {
            "GET" => true,
            "HEAD" => false,
            _ => return plain("405 Method Not Allowed", "GET, HEAD\n"),
        };
        let answer = match path {
            "/metrics" => {
                let format = Exposition::accepted_by(accept);
                let body = format.write(&board.read());
                Self { status: "200 OK", content_type: format.content_type(), body, has_body }
            }
            "/healthz" => plain("200 OK", "ok\n"),
            "/" => plain("200 OK", "dtrain: /metrics, /healthz\n"),
            _ => plain("404 Not Found", "/metrics, /healthz\n"),
        };
        Self { has_body, ..answer }
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { status, content_type, body, has_body } = self;
        let length = body.len();
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        )
        .into_bytes();
        if *has_body {
            bytes.extend_from_slice(body.as_bytes());
        }
        bytes
    }
}

/// Where a person or a scraper on this host finds what listens there: everybody's address is nobody's.
#[must_use]
pub fn reached_here(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, addr.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, addr.port()).into(),
        addr => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> (ScrapeServer, SocketAddr) {
        let socket = ScrapeSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let addr = socket.local_addr();
        (socket.serve(Arc::new(Board::default())).unwrap(), addr)
    }

    fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn what_is_asked_for_is_answered_and_everything_else_is_refused_by_its_code() {
        let (_server, addr) = server();
        let text = ask(addr, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{text}");
        assert!(text.contains("dtrain_step{run=\"\"} 0\n"), "{text}");
        let open = ask(addr, b"GET /metrics?x=1 HTTP/1.0\r\naccept: application/openmetrics-text\r\n\r\n");
        assert!(
            open.contains("application/openmetrics-text; version=1.0.0") && open.ends_with("# EOF\n"),
            "{open}"
        );
        assert!(ask(addr, b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok\n"));
        assert!(ask(addr, b"HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        for (request, code) in [
            (&b"GET /nothing HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
            (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
        ] {
            let text = ask(addr, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {code} ")), "{code}: {text}");
        }
    }

    #[test]
    fn a_request_without_an_end_is_cut_off_and_the_others_are_served() {
        let (server, addr) = server();
        let mut long = TcpStream::connect(addr).unwrap();
        // It may be cut off before it has said everything.
        let _ = long.write_all(&vec![b'x'; 4 * LONGEST_REQUEST]);
        let mut answer = [0; 12];
        if long.read_exact(&mut answer).is_ok() {
            assert_eq!(&answer, b"HTTP/1.1 431");
        }
        // More who say nothing than there are places; whoever says something comes through when they are cut off.
        let silent: Vec<TcpStream> =
            (0..2 * MOST_SERVED).map(|_| TcpStream::connect(addr).unwrap()).collect();
        assert!(ask(addr, b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
        drop(silent);
        drop(server);
        assert!(TcpStream::connect(addr).is_err(), "nobody listens any more");
    }
}
