//! One end of a control link: framed messages over a socket pair inside a host, over an encrypted stream between hosts.
//!
//! Sending never blocks its actor: messages are whole views, so when the other end does not read, the newest ones
//! are dropped and the next heartbeat repairs it. Reading ends with the link.

use dtrain_protocol::{CodecError, Decoder, Message, encode};
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How many frames may wait for the other end to read.
const QUEUE: usize = 64;
/// The same where one link carries the words of all ranks of a host.
const HOST_QUEUE: usize = 1_024;
const PORTION: usize = 16 * 1024;

/// Why a link can no longer be read.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed.
    #[error("control link: {0}")]
    Io(#[from] io::Error),
    /// What came is no frame.
    #[error("control link: {0}")]
    Codec(#[from] CodecError),
}

/// The sending half. Clones share the queue.
#[derive(Clone, Debug)]
pub struct LinkSender {
    queue: mpsc::Sender<Vec<u8>>,
}

/// The receiving half.
pub struct LinkReceiver {
    stream: Box<dyn AsyncRead + Send + Sync + Unpin>,
    decoder: Decoder,
    portion: Vec<u8>,
}

/// Opens our end. The writer task ends when all senders are dropped and everything is written; await it to flush.
///
/// *Errors*: of the system call. *Panics* outside of a tokio runtime.
pub fn open(stream: StdStream) -> io::Result<(LinkSender, LinkReceiver, JoinHandle<()>)> {
    stream.set_nonblocking(true)?;
    let (read, write) = UnixStream::from_std(stream)?.into_split();
    Ok(over(read, write, QUEUE))
}

/// Opens our end of a link between hosts. As [`open`].
pub fn open_host(
    read: impl AsyncRead + Send + Sync + Unpin + 'static,
    write: impl AsyncWrite + Send + Unpin + 'static,
) -> (LinkSender, LinkReceiver, JoinHandle<()>) {
    over(read, write, HOST_QUEUE)
}

fn over(
    read: impl AsyncRead + Send + Sync + Unpin + 'static,
    write: impl AsyncWrite + Send + Unpin + 'static,
    room: usize,
) -> (LinkSender, LinkReceiver, JoinHandle<()>) {
    let (queue, frames) = mpsc::channel(room);
    let writer = tokio::spawn(write_all(write, frames));
    let receiver =
        LinkReceiver { stream: Box::new(read), decoder: Decoder::default(), portion: vec![0; PORTION] };
    (LinkSender { queue }, receiver, writer)
}

async fn write_all(mut stream: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        // The other end is gone; its reader tells what follows from that.
        if stream.write_all(&frame).await.is_err() {
            return;
        }
    }
    // The same holds for its end.
    let _ = stream.shutdown().await;
}

impl LinkSender {
    /// Whether both send over one link.
    pub fn is_same(&self, other: &Self) -> bool {
        self.queue.same_channel(&other.queue)
    }

    /// Whether more than half of the queue is free: what can wait leaves the rest to what cannot.
    pub fn has_room(&self) -> bool {
        self.queue.capacity() > self.queue.max_capacity() / 2
    }

    /// Sends, or drops the message when too many wait already.
    pub fn send(&self, message: &Message) {
        let mut frame = Vec::new();
        match encode(message, &mut frame) {
            Ok(()) => {
                if self.queue.try_send(frame).is_err() {
                    tracing::debug!("a message was not sent: the other end does not read");
                }
            }
            Err(error) => tracing::error!(%error, "a message could not be framed"),
        }
    }
}

impl LinkReceiver {
    /// The next message; `None` when the other end has closed.
    ///
    /// *Errors*: see [`LinkError`]; the link is dead from then on.
    pub async fn next(&mut self) -> Result<Option<Message>, LinkError> {
        loop {
            if let Some(message) = self.decoder.pull()? {
                return Ok(Some(message));
            }
            match self.stream.read(&mut self.portion).await {
                Ok(0) => return Ok(None),
                Ok(n) => self.decoder.push(&self.portion[..n]),
                // A peer that was killed with unread messages resets the pair: that is its end too.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::RankSetup;

    fn large(n: usize) -> Message {
        Message::RankSetup(RankSetup::of(&"x".repeat(n)))
    }

    #[tokio::test]
    async fn messages_cross_in_order_and_the_end_is_seen() {
        let (a, b) = StdStream::pair().expect("a pair");
        let (sender, _receiver, writer) = open(a).expect("opens");
        let (_other, mut receiver, _) = open(b).expect("opens");
        for n in [0, 1, 100_000] {
            sender.send(&large(n));
        }
        for n in [0, 1, 100_000] {
            assert_eq!(receiver.next().await.expect("reads"), Some(large(n)));
        }
        drop(sender);
        writer.await.expect("the writer ends");
        drop(_receiver);
        assert_eq!(receiver.next().await.expect("reads"), None);
    }

    #[tokio::test]
    async fn garbage_is_an_error_and_not_a_message() {
        use std::io::Write;
        let (mut a, b) = StdStream::pair().expect("a pair");
        let (_sender, mut receiver, _) = open(b).expect("opens");
        a.write_all(&[0xAA; 64]).expect("writes");
        assert!(matches!(receiver.next().await, Err(LinkError::Codec(_))));
    }

    #[tokio::test]
    async fn an_end_that_does_not_read_never_blocks_the_sender() {
        let (a, _b) = StdStream::pair().expect("a pair");
        let (sender, _receiver, _writer) = open(a).expect("opens");
        for _ in 0..10 * QUEUE {
            sender.send(&large(100_000));
        }
        assert!(sender.queue.capacity() < QUEUE);
    }
}
