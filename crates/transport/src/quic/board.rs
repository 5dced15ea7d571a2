//! Where the compute thread and the tasks of the links meet: a lane each way for every peer.
//!
//! The compute thread never touches a link, and the tasks never wait for the compute thread but for room. Frames go out in
//! buffers that come back when the peer has acknowledged them; [`Pace`] says how many bytes may be under way;
//! what comes in waits in a bounded queue, and when that is full the link's own flow control holds the peer up.
//! It does not know streams, or what a frame means.

use super::pace::Pace;
use super::wire::{Floats, FrameBytes};
use bytes::Bytes;
use dtrain_collective::{Header, Outgoing};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Frames that may be on their way to one peer: queued, or sent and not acknowledged. It bounds small frames, and large ones
/// that are sent ahead; of others there are fewer, by [`Pace`].
const UNDER_WAY: usize = 256;
/// Frames of one peer that may wait here to be used.
const WAITING: usize = 128;

/// A frame that has arrived.
pub(super) type Arrived = (Header, Floats);

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Everything queued still goes out.
    Finish,
    /// Nothing more goes out, and the peer is told.
    Abandon,
}

/// What the task of a stream does next.
pub(super) enum Next {
    /// Sends these bytes.
    Send(Bytes),
    /// Ends the stream.
    End(Ending),
    /// Waits for [`Lane::work`].
    Wait,
}

/// All lanes of one mesh, and the sleep of its compute thread.
#[derive(Debug)]
pub(super) struct Board {
    lanes: Vec<Lane>,
    /// Counts whatever the compute thread may be waiting for.
    changes: Mutex<u64>,
    changed: Condvar,
    /// The same for a compute thread that runs the tasks meanwhile.
    told: Notify,
}

/// One peer's lanes.
#[derive(Debug, Default)]
pub(super) struct Lane {
    inbound: Mutex<Inbound>,
    outbound: Mutex<Outbound>,
    /// There is room for another frame of this peer.
    room: Notify,
    /// There is something to send, or an end.
    pub work: Notify,
    /// The mesh is gone: the task of the stream has a bounded time left.
    pub leaving: Notify,
}

#[derive(Debug, Default)]
struct Inbound {
    waiting: VecDeque<Arrived>,
    spare: Vec<Floats>,
    lost: Option<String>,
}

#[derive(Debug)]
struct Outbound {
    ready: VecDeque<FrameBytes>,
    spare: Vec<FrameBytes>,
    made: usize,
    /// Of the frames that are queued, or sent and not acknowledged.
    bytes: usize,
    pace: Pace,
    /// Frames that the peer has acknowledged.
    acknowledged: u64,
    /// The compute thread found no buffer and wants to hear of the next.
    wants_room: bool,
    ending: Option<Ending>,
    lost: Option<String>,
}

impl Default for Outbound {
    fn default() -> Self {
        Self {
            ready: VecDeque::with_capacity(UNDER_WAY),
            spare: Vec::with_capacity(UNDER_WAY),
            made: 0,
            bytes: 0,
            pace: Pace::new(Instant::now()),
            acknowledged: 0,
            wants_room: false,
            ending: None,
            lost: None,
        }
    }
}

/// When a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// When its collective needs it.
    Own,
    /// Before, so that it is there by then.
    Ahead,
}

impl Outbound {
    /// A buffer for a frame, if one more may be under way.
    fn buffer(&mut self, turn: Turn) -> Option<FrameBytes> {
        let room = turn == Turn::Ahead || self.bytes < self.pace.limit();
        let buffer = match room.then(|| self.spare.pop()) {
            Some(Some(buffer)) => Some(buffer),
            Some(None) if self.made < UNDER_WAY => {
                self.made += 1;
                Some(FrameBytes::default())
            }
            _ => None,
        };
        self.wants_room |= buffer.is_none();
        buffer
    }

    /// Queues a frame.
    fn queue(&mut self, buffer: FrameBytes) {
        if self.bytes == 0 {
            self.pace.begin(Instant::now());
        }
        self.bytes += buffer.as_ref().len();
        self.ready.push_back(buffer);
    }

    /// Takes back what the peer has acknowledged; whether somebody waits for that.
    fn give_back(&mut self, buffer: FrameBytes) -> bool {
        let bytes = buffer.as_ref().len();
        self.bytes -= bytes;
        self.pace.acknowledged(Instant::now(), bytes);
        self.spare.push(buffer);
        self.acknowledged += 1;
        std::mem::take(&mut self.wants_room)
    }
}

/// A thread that panicked holding one of these locks left nothing half done: each critical section is one queue operation.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub fn new(world: usize) -> Self {
        let mut lanes: Vec<Lane> = (0..world).map(|_| Lane::default()).collect();
        for lane in &mut lanes {
            // Room for all there can be, so that the compute thread never makes a queue longer.
            let inbound = lane.inbound.get_mut().unwrap_or_else(PoisonError::into_inner);
            // One more is in the hands of the compute thread, and one with the task of the stream.
            inbound.waiting.reserve(WAITING + 1);
            inbound.spare.reserve(WAITING + 2);
        }
        Self { lanes, changes: Mutex::new(0), changed: Condvar::new(), told: Notify::new() }
    }

    pub fn lane(&self, peer: usize) -> &Lane {
        &self.lanes[peer]
    }

    pub fn changes(&self) -> u64 {
        *lock(&self.changes)
    }

    /// Ends the wait of the compute thread, the present one or the next.
    pub fn notify(&self) {
        *lock(&self.changes) += 1;
        self.changed.notify_one();
        self.told.notify_one();
    }

    /// As `wait`, for a thread that runs the tasks meanwhile.
    pub async fn change(&self, looked: u64) {
        while self.changes() == looked {
            self.told.notified().await;
        }
    }

    /// *Blocks* until the count of changes is another than `looked`.
    pub fn wait(&self, looked: u64) {
        let changes = lock(&self.changes);
        drop(self.changed.wait_while(changes, |now| *now == looked).unwrap_or_else(PoisonError::into_inner));
    }

    /// Queues a copy of a frame; false if as much is under way as may be, which is more for one that is sent ahead. The task of the stream hears of it by
    /// [`Board::tell`]. *Errors*: how the lane was lost.
    pub fn send(&self, frame: &Outgoing<'_>, turn: Turn) -> Result<bool, String> {
        let lane = self.lane(frame.to.index());
        let mut buffer = {
            let out = &mut *lock(&lane.outbound);
            if let Some(what) = &out.lost {
                return Err(what.clone());
            }
            match out.buffer(turn) {
                Some(buffer) => buffer,
                None => return Ok(false),
            }
        };
        // Copied outside the lock, because the task of the stream takes it for each frame.
        buffer.fill(&frame.header, frame.payload);
        lock(&lane.outbound).queue(buffer);
        Ok(true)
    }

    /// Tells the task of the stream to `peer` that something is queued.
    pub fn tell(&self, peer: usize) {
        self.lane(peer).work.notify_one();
    }

    /// What the task of the stream to `peer` does next.
    pub fn next(self: &Arc<Self>, peer: usize) -> Next {
        let out = &mut *lock(&self.lane(peer).outbound);
        if out.ending == Some(Ending::Abandon) {
            return Next::End(Ending::Abandon);
        }
        match (out.ready.pop_front(), out.ending) {
            (Some(buffer), _) => Next::Send(Bytes::from_owner(Lent { buffer, board: self.clone(), peer })),
            (None, Some(ending)) => Next::End(ending),
            (None, None) => Next::Wait,
        }
    }

    fn give_back(&self, peer: usize, buffer: FrameBytes) {
        let wanted = lock(&self.lane(peer).outbound).give_back(buffer);
        if wanted {
            self.notify();
        }
    }

    /// Notes the shortest round trip to `peer`.
    pub fn path(&self, peer: usize, round_trip: Duration) {
        lock(&self.lane(peer).outbound).pace.path(round_trip);
    }

    /// How many frames are on their way to `peer`, and how many it has acknowledged so far.
    pub fn under_way(&self, peer: usize) -> (usize, u64) {
        let out = lock(&self.lane(peer).outbound);
        (out.made - out.spare.len(), out.acknowledged)
    }

    /// Ends the outgoing lane of `peer`.
    pub fn end(&self, peer: usize, ending: Ending) {
        lock(&self.lane(peer).outbound).ending = Some(ending);
        self.lane(peer).work.notify_one();
        self.lane(peer).leaving.notify_one();
    }

    /// Whether the outgoing lane of `peer` was given up.
    pub fn is_abandoned(&self, peer: usize) -> bool {
        lock(&self.lane(peer).outbound).ending == Some(Ending::Abandon)
    }

    /// Notes that nothing more can be sent to `peer`; the first reason stays.
    pub fn lose_outbound(&self, peer: usize, what: String) {
        lock(&self.lane(peer).outbound).lost.get_or_insert(what);
        self.notify();
    }

    /// Notes that nothing more will come from `peer`; the first reason stays.
    pub fn lose_inbound(&self, peer: usize, what: String) {
        lock(&self.lane(peer).inbound).lost.get_or_insert(what);
        self.notify();
    }

    /// A used buffer for the next frame of `peer`, or a new one.
    pub fn spare(&self, peer: usize) -> Floats {
        lock(&self.lane(peer).inbound).spare.pop().unwrap_or_default()
    }

    /// Lays a frame down for the compute thread; waits for room.
    pub async fn deliver(&self, peer: usize, frame: Arrived) {
        let lane = self.lane(peer);
        while lock(&lane.inbound).waiting.len() >= WAITING {
            lane.room.notified().await;
        }
        lock(&lane.inbound).waiting.push_back(frame);
        self.notify();
    }

    /// Takes the foremost frame of `peer` out, so that no lock is held while it is used. *Errors*: how the lane was lost,
    /// once everything that came before that was taken.
    pub fn take(&self, peer: usize) -> Result<Option<Arrived>, String> {
        let inbound = &mut *lock(&self.lane(peer).inbound);
        match (inbound.waiting.pop_front(), &inbound.lost) {
            (Some(frame), _) => Ok(Some(frame)),
            (None, Some(what)) => Err(what.clone()),
            (None, None) => Ok(None),
        }
    }

    /// Puts back what was taken and is not used yet.
    pub fn put_back(&self, peer: usize, frame: Arrived) {
        lock(&self.lane(peer).inbound).waiting.push_front(frame);
    }

    /// Gives the buffer of a used frame back.
    pub fn recycle(&self, peer: usize, buffer: Floats) {
        lock(&self.lane(peer).inbound).spare.push(buffer);
        self.lane(peer).room.notify_one();
    }
}

/// A buffer in the hands of the link, until the peer has acknowledged all of it.
struct Lent {
    buffer: FrameBytes,
    board: Arc<Board>,
    peer: usize,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.board.give_back(self.peer, std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_collective::{OpKind, Sequence, Tag};
    use dtrain_types::{Generation, Rank, Wire};

    fn header() -> Header {
        let (generation, sequence) = (Generation(1), Sequence(1));
        let tag =
            Tag { generation, sequence, op: OpKind::Barrier, operand: 0, round: 0, part: 0, segment: 0 };
        Header { tag, wire: Wire::F32, trailer: None }
    }

    fn send(board: &Board) -> Result<bool, String> {
        board.send(&Outgoing { to: Rank(0), header: header(), payload: &[1.0, 2.0] }, Turn::Own)
    }

    #[test]
    fn what_is_not_acknowledged_keeps_its_buffer_and_a_full_lane_is_told_of_the_next_one() {
        let board = Arc::new(Board::new(1));
        let mut under_way = Vec::new();
        for _ in 0..UNDER_WAY {
            assert_eq!(send(&board), Ok(true));
            let Next::Send(bytes) = board.next(0) else { panic!("one was queued") };
            under_way.push(bytes);
        }
        assert_eq!(send(&board), Ok(false));
        let looked = board.changes();
        let memory = under_way.pop().expect("there are many");
        let at = memory.as_ptr();
        drop(memory);
        board.wait(looked);
        assert_eq!(send(&board), Ok(true));
        let Next::Send(bytes) = board.next(0) else { panic!("one was queued") };
        assert_eq!(bytes.as_ptr(), at, "the same memory goes round");
    }

    #[test]
    fn large_frames_are_held_up_long_before_the_number_of_buffers_is() {
        let board = Arc::new(Board::new(1));
        let payload = vec![1.0; 16 << 10];
        let frame = Outgoing { to: Rank(0), header: header(), payload: &payload };
        let sent = (0..UNDER_WAY).take_while(|_| board.send(&frame, Turn::Own) == Ok(true)).count();
        assert_eq!(sent, (512 << 10) / (64 << 10), "the least that may be under way, in frames of 64 KiB");
        assert_eq!(board.under_way(0), (sent, 0));
        let Next::Send(bytes) = board.next(0) else { panic!("one was queued") };
        drop(bytes);
        assert_eq!(board.send(&frame, Turn::Own), Ok(true), "what was acknowledged makes room");
        let ahead = (0..).take_while(|_| board.send(&frame, Turn::Ahead) == Ok(true)).count();
        assert_eq!(sent + ahead, UNDER_WAY, "who comes back late may fill all buffers");
    }

    #[test]
    fn a_finished_lane_sends_what_it_has_and_an_abandoned_one_nothing() {
        let board = Arc::new(Board::new(1));
        assert_eq!(send(&board), Ok(true));
        board.end(0, Ending::Finish);
        assert!(matches!(board.next(0), Next::Send(_)));
        assert!(matches!(board.next(0), Next::End(Ending::Finish)));
        assert_eq!(send(&board), Ok(true));
        board.end(0, Ending::Abandon);
        assert!(matches!(board.next(0), Next::End(Ending::Abandon)));
    }

    #[tokio::test]
    async fn a_lost_lane_gives_what_came_before_and_then_its_reason() {
        let board = Board::new(1);
        board.deliver(0, (header(), Floats::from(vec![3.0]))).await;
        board.lose_inbound(0, "gone".into());
        board.lose_inbound(0, "gone again".into());
        let taken = board.take(0).map(|frame| frame.map(|(header, floats)| (header, floats.to_vec())));
        assert_eq!(taken, Ok(Some((header(), vec![3.0]))));
        assert_eq!(board.take(0).map(drop), Err("gone".into()));
        board.lose_outbound(0, "stopped".into());
        assert_eq!(send(&board), Err("stopped".into()));
    }

    #[tokio::test]
    async fn a_full_lane_holds_its_reader_up_until_a_frame_was_used() {
        let board = Board::new(1);
        for _ in 0..WAITING {
            board.deliver(0, (header(), Floats::default())).await;
        }
        let deliver = board.deliver(0, (header(), Floats::default()));
        tokio::pin!(deliver);
        let ready = std::future::poll_fn(|context| std::task::Poll::Ready(deliver.as_mut().poll(context)));
        assert!(ready.await.is_pending());
        let (_, buffer) = board.take(0).expect("not lost").expect("one waits");
        board.recycle(0, buffer);
        deliver.await;
    }
}
