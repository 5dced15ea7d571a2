//! A client of HTTP, as small as tests need it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What a server answers to a request; `None` where nobody does.
pub fn http_get(at: &str, path: &str, headers: &str) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// The body of an answer that is no error.
pub fn http_body(at: &str, path: &str) -> Option<String> {
    let answer = http_get(at, path, "")?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

/// A text as part of a query.
pub fn query_part(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
