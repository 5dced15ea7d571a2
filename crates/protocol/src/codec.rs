//! Messages to bytes and back. The only file that knows bincode.
//!
//! It does not know links: the driver reads and writes bytes. Whatever arrives gives a message or an error, never a
//! panic, and never an allocation larger than [`MAX_PAYLOAD`] because of a length that a peer claims.

use crate::frame::{CodecError, HEADER_BYTES, Header, MAX_PAYLOAD, seal};
use crate::message::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

const REPORT: u16 = 1;
const DIRECTIVE: u16 = 2;
const HEARTBEAT: u16 = 3;
const RANK_SETUP: u16 = 4;
const HELLO: u16 = 5;
const NODE_REPORT: u16 = 6;
const NODE_ORDER: u16 = 7;
const GOODBYE: u16 = 8;
const CLOCK: u16 = 9;
const LAST_LINES: u16 = 10;
const OUTPUT: u16 = 11;

fn config() -> impl bincode::config::Config {
    bincode::config::legacy().with_limit::<MAX_PAYLOAD>()
}

/// The bytes of a body of another conversation than training's, which puts a frame around them itself.
///
/// *Errors*: as [`encode`].
pub fn to_bytes<T: Serialize>(body: &T) -> Result<Vec<u8>, CodecError> {
    let bytes =
        bincode::serde::encode_to_vec(body, config()).map_err(|_| CodecError::Unwritable { kind: 0 })?;
    if bytes.len() > MAX_PAYLOAD { Err(CodecError::TooLong { bytes: bytes.len() }) } else { Ok(bytes) }
}

/// The body that [`to_bytes`] wrote.
///
/// *Errors*: these are no such bytes.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    take(0, bytes)
}

/// Appends the frame of `message` to `out`.
///
/// *Errors*: [`CodecError::TooLong`] if the payload is above [`MAX_PAYLOAD`]; `out` is then as before.
pub fn encode(message: &Message, out: &mut Vec<u8>) -> Result<(), CodecError> {
    match message {
        Message::Report(body) => put(REPORT, &**body, out),
        Message::Directive(body) => put(DIRECTIVE, &**body, out),
        Message::Heartbeat(body) => put(HEARTBEAT, body, out),
        Message::RankSetup(body) => put(RANK_SETUP, body, out),
        Message::Hello(body) => put(HELLO, body, out),
        Message::NodeReport(body) => put(NODE_REPORT, &**body, out),
        Message::NodeOrder(body) => put(NODE_ORDER, &**body, out),
        Message::Goodbye(body) => put(GOODBYE, body, out),
        Message::Clock(body) => put(CLOCK, body, out),
        Message::LastLines(body) => put(LAST_LINES, body, out),
        Message::Output(body) => put(OUTPUT, body, out),
    }
}

fn put<T: Serialize>(kind: u16, body: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let written = bincode::serde::encode_into_std_write(body, out, config());
    let bytes = out.len() - start - HEADER_BYTES;
    let error = match written {
        Err(_) => CodecError::Unwritable { kind },
        Ok(_) if bytes > MAX_PAYLOAD => CodecError::TooLong { bytes },
        Ok(_) => {
            seal(out, start, kind);
            return Ok(());
        }
    };
    out.truncate(start);
    Err(error)
}

fn decode(kind: u16, payload: &[u8]) -> Result<Message, CodecError> {
    match kind {
        REPORT => take(kind, payload).map(|body| Message::Report(Box::new(body))),
        DIRECTIVE => take(kind, payload).map(|body| Message::Directive(Box::new(body))),
        HEARTBEAT => take(kind, payload).map(Message::Heartbeat),
        RANK_SETUP => take(kind, payload).map(Message::RankSetup),
        HELLO => take(kind, payload).map(Message::Hello),
        NODE_REPORT => take(kind, payload).map(|body| Message::NodeReport(Box::new(body))),
        NODE_ORDER => take(kind, payload).map(|body| Message::NodeOrder(Box::new(body))),
        GOODBYE => take(kind, payload).map(Message::Goodbye),
        CLOCK => take(kind, payload).map(Message::Clock),
        LAST_LINES => take(kind, payload).map(Message::LastLines),
        OUTPUT => take(kind, payload).map(Message::Output),
        _ => Err(CodecError::Kind(kind)),
    }
}

fn take<T: DeserializeOwned>(kind: u16, payload: &[u8]) -> Result<T, CodecError> {
    match bincode::serde::decode_from_slice(payload, config()) {
        // Bytes after the body would be a message that only one side understands.
        Ok((body, used)) if used == payload.len() => Ok(body),
        _ => Err(CodecError::Payload { kind }),
    }
}

/// Turns a stream of bytes into messages: `push` what was read, then `pull` until there is none.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were already handed out.
    used: usize,
    broken: Option<CodecError>,
}

impl Decoder {
    /// Takes in bytes, in any portions. Those after an error are dropped.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken.is_some() {
            return;
        }
        // Moving the rest to the front once per push keeps the buffer within one frame and one portion.
        self.buffer.drain(..self.used);
        self.used = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, if all of it is there.
    ///
    /// *Errors*: see [`CodecError`]; the same one from then on, because the next frame cannot be found.
    pub fn pull(&mut self) -> Result<Option<Message>, CodecError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let next = self.next();
        if let Err(error) = &next {
            self.broken = Some(*error);
            self.buffer = Vec::new();
            self.used = 0;
        }
        next
    }

    /// How many bytes of an unfinished message wait. *Units*: bytes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.used
    }

    fn next(&mut self) -> Result<Option<Message>, CodecError> {
        let rest = &self.buffer[self.used..];
        let Some(head) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::parse(head)?;
        let Some(frame) = rest.get(..HEADER_BYTES + header.length) else { return Ok(None) };
        header.check(frame)?;
        let message = decode(header.kind, &frame[HEADER_BYTES..])?;
        self.used += frame.len();
        Ok(Some(message))
    }
}
