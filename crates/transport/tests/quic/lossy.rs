//! A network in memory and in virtual time: it loses, delays and reorders datagrams as a seed says, and keeps a trace.
//!
//! Delays are whole milliseconds, because tokio's timers are.

use dtrain_types::{Key, MicroBatch, Seed, Site, Step};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What the network does to datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub seed: u64,
    /// Lost datagrams in a thousand.
    pub loss: u32,
    /// *Units*: milliseconds; each datagram draws its own, so they overtake one another.
    pub delay: (u32, u32),
    /// Larger datagrams vanish, as on a path that must not fragment them.
    pub largest: usize,
}

/// One datagram: when it left, from and to which port, its length, and after how many milliseconds it arrives, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub at: u64,
    pub from: u16,
    pub to: u16,
    pub length: usize,
    pub delay: Option<u32>,
}

#[derive(Debug)]
pub struct Network {
    weather: Weather,
    key: Key,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    drawn: u32,
    /// Nothing arrives any more.
    cut: bool,
    inboxes: BTreeMap<SocketAddr, Inbox>,
    trace: Vec<Sighting>,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
    reader: Option<Waker>,
}

impl Network {
    /// *Panics* outside a tokio runtime.
    pub fn new(weather: Weather) -> Arc<Self> {
        let key = Key::new(Seed(weather.seed), Step(0), MicroBatch(0), Site(0));
        Arc::new(Self { weather, key, begun: Instant::now(), state: Mutex::default() })
    }

    pub fn socket(self: &Arc<Self>, addr: SocketAddr) -> Arc<Socket> {
        self.state.lock().expect("no panic").inboxes.insert(addr, Inbox::default());
        Arc::new(Socket { addr, network: self.clone() })
    }

    /// From now on every datagram is lost.
    pub fn cut(&self) {
        self.state.lock().expect("no panic").cut = true;
    }

    pub fn trace(&self) -> Vec<Sighting> {
        self.state.lock().expect("no panic").trace.clone()
    }

    fn send(self: &Arc<Self>, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let delay = {
            let state = &mut *self.state.lock().expect("no panic");
            let cut = state.cut;
            let mut draw = |below: u32| {
                state.drawn += 1;
                self.key.bits(state.drawn) % below
            };
            let (least, most) = self.weather.delay;
            let lost = draw(1000) < self.weather.loss || cut;
            let delay = least + draw(most - least + 1);
            let delay = (!lost && bytes.len() <= self.weather.largest).then_some(delay);
            let at = self.begun.elapsed().as_millis() as u64;
            let length = bytes.len();
            state.trace.push(Sighting { at, from: from.port(), to: to.port(), length, delay });
            delay
        };
        let Some(delay) = delay else { return };
        let (network, bytes) = (self.clone(), bytes.to_vec());
        tokio::spawn(async move {
            sleep(Duration::from_millis(delay.into())).await;
            let state = &mut *network.state.lock().expect("no panic");
            let Some(inbox) = state.inboxes.get_mut(&to) else { return };
            inbox.waiting.push_back((from, bytes));
            if let Some(reader) = inbox.reader.take() {
                reader.wake();
            }
        });
    }
}

#[derive(Debug)]
pub struct Socket {
    addr: SocketAddr,
    network: Arc<Network>,
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.network.send(self.addr, transmit.destination, transmit.contents);
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let state = &mut *self.network.state.lock().expect("no panic");
        let inbox = state.inboxes.get_mut(&self.addr).expect("it was made with the socket");
        let mut count = 0;
        while count < buffers.len().min(meta.len()) {
            let Some((from, bytes)) = inbox.waiting.pop_front() else { break };
            buffers[count][..bytes.len()].copy_from_slice(&bytes);
            meta[count] =
                RecvMeta { addr: from, len: bytes.len(), stride: bytes.len(), ..RecvMeta::default() };
            count += 1;
        }
        if count == 0 {
            inbox.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
