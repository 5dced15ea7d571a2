//! Frames of a mesh as bytes, and the hello before them.
//!
//! ```text
//! hello  0        8        10    12    16   20     24          32
//!        magic    version  zero  from  to   world  generation
//!
//! frame  0           8         16  17     18    20       24     28    32       36      40
//!        generation  sequence  op  flags  zero  operand  round  part  segment  floats  [trailer: 56]  floats as f32 or bf16
//! ```
//! All numbers are little-endian. There is no checksum: the link authenticates every packet. A peer that holds the token can
//! still be broken or hostile, so every field is checked, and no length is believed before it is found to be within bounds.
//! This file does not know streams.

use dtrain_collective::{Header, OpKind, SEGMENT, Sequence, Tag};
use dtrain_types::{Generation, Trailer, Wire};
use std::ops::Deref;

/// The first bytes on a stream of a mesh.
const MAGIC: [u8; 8] = *b"DTRNMESH";
/// The version of hellos and frames, and of how a sum is cut into them.
const VERSION: u16 = 3;
/// Bytes of a hello.
pub(super) const HELLO_BYTES: usize = 32;
/// Bytes before the trailer or the floats.
const HEADER_BYTES: usize = 40;
const TRAILER_BYTES: usize = 8 * Trailer::WORDS;
/// The flag of a frame that carries a trailer.
const HAS_TRAILER: u8 = 1;
/// The flag of a frame whose floats are rounded to bf16: their lower halves, which are zero, are left out.
const HALVES: u8 = 2;

/// Why bytes are no frame of this mesh. The stream is of no use after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The stream does not begin as a mesh's does.
    #[error("the stream begins with {0:02x?}, which is no mesh")]
    Magic([u8; 8]),
    /// Another version of dtrain.
    #[error("mesh version {got}, this side has {VERSION}")]
    Version {
        /// The peer's.
        got: u16,
    },
    /// A frame of another generation than its stream.
    #[error("a frame of generation {got} on a stream of generation {want}")]
    Generation {
        /// The frame's.
        got: Generation,
        /// The stream's.
        want: Generation,
    },
    /// No such collective.
    #[error("unknown collective {0}")]
    Op(u8),
    /// Bits that nobody sets.
    #[error("unknown flags {0:#x} in a frame")]
    Flags(u32),
    /// More floats than a segment has.
    #[error("a frame of {floats} floats, the limit is {SEGMENT}")]
    TooLong {
        /// The length that was announced.
        floats: u32,
    },
}

/// Who opens a stream, to whom, for which generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub generation: Generation,
    pub from: u32,
    pub to: u32,
    pub world: u32,
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.from.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.to.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.world.to_le_bytes());
        bytes[24..].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes
    }

    /// *Errors*: magic, version, flags.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, WireError> {
        let mut from = Reader(bytes);
        let magic = from.take();
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        let got = u16::from_le_bytes(from.take());
        if got != VERSION {
            return Err(WireError::Version { got });
        }
        match u16::from_le_bytes(from.take()) {
            0 => {}
            flags => return Err(WireError::Flags(flags.into())),
        }
        let (sender, to, world) = (from.u32(), from.u32(), from.u32());
        Ok(Self { from: sender, to, world, generation: Generation(from.u64()) })
    }
}

/// Takes numbers off the front of bytes whose length was checked.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = tail;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// The bytes of one frame. Its memory grows to the largest frame and is kept.
#[derive(Debug, Default)]
pub(super) struct FrameBytes {
    memory: Vec<u8>,
    used: usize,
}

impl FrameBytes {
    /// Writes a frame over the one before. *Panics* if the payload is longer than a segment.
    pub fn fill(&mut self, header: &Header, payload: &[f32]) {
        assert!(payload.len() <= SEGMENT, "a frame of {} floats", payload.len());
        let trailer_bytes = if header.trailer.is_some() { TRAILER_BYTES } else { 0 };
        self.used = HEADER_BYTES + trailer_bytes + payload.len() * header.wire.bytes();
        if self.memory.len() < self.used {
            // Twice at most: small frames alone stay small, and the first full segment makes room for all.
            let largest = HEADER_BYTES + TRAILER_BYTES + SEGMENT * size_of::<f32>();
            self.memory.resize(self.used.next_power_of_two().min(largest), 0);
        }
        let (head, rest) = self.memory.split_at_mut(HEADER_BYTES);
        write_header(head, header, payload.len());
        let (trailer, rest) = rest.split_at_mut(trailer_bytes);
        if let Some(given) = &header.trailer {
            write_trailer(trailer, given);
        }
        match header.wire {
            Wire::F32 => to_bytes(rest.as_chunks_mut::<4>().0, payload),
            Wire::Bf16 => to_halves(rest.as_chunks_mut::<2>().0, payload),
        }
    }
}

/// Lays floats down as bytes. Apart from what calls it, so that the compiler sees two slices that share nothing and makes it
/// one copy of the C library, which is twice as fast as a loop where memory is the limit.
#[inline(never)]
fn to_bytes(out: &mut [[u8; 4]], floats: &[f32]) {
    for (bytes, float) in out.iter_mut().zip(floats) {
        *bytes = float.to_le_bytes();
    }
}

/// Lays down the upper halves of floats whose lower ones are zero.
#[inline(never)]
fn to_halves(out: &mut [[u8; 2]], floats: &[f32]) {
    debug_assert!(floats.iter().all(|float| float.to_bits() & 0xffff == 0), "a float that was not rounded");
    for (bytes, float) in out.iter_mut().zip(floats) {
        *bytes = ((float.to_bits() >> 16) as u16).to_le_bytes();
    }
}

/// Takes floats up from their upper halves.
#[inline(never)]
fn from_halves(out: &mut [f32], bytes: &[[u8; 2]]) {
    for (float, bytes) in out.iter_mut().zip(bytes) {
        *float = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Takes floats up from bytes; apart for the same reason.
#[inline(never)]
fn from_bytes(out: &mut [f32], bytes: &[[u8; 4]]) {
    for (float, bytes) in out.iter_mut().zip(bytes) {
        *float = f32::from_le_bytes(*bytes);
    }
}

impl AsRef<[u8]> for FrameBytes {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.used]
    }
}

fn write_header(out: &mut [u8], header: &Header, floats: usize) {
    let tag = &header.tag;
    let op =
        OpKind::ALL.iter().position(|op| *op == tag.op).expect("every collective has a number on the wire");
    out[..8].copy_from_slice(&tag.generation.0.to_le_bytes());
    out[8..16].copy_from_slice(&tag.sequence.0.to_le_bytes());
    let trailer = if header.trailer.is_some() { HAS_TRAILER } else { 0 };
    let halves = if header.wire == Wire::Bf16 { HALVES } else { 0 };
    out[16..20].copy_from_slice(&[op as u8, trailer | halves, 0, 0]);
    let numbers = [tag.operand, tag.round, tag.part, tag.segment, floats as u32];
    for (bytes, number) in out[20..].as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
}

fn write_trailer(out: &mut [u8], trailer: &Trailer) {
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(trailer.words()) {
        *bytes = word.to_le_bytes();
    }
}

/// The floats of a frame, in memory that grows to the largest frame and is kept.
#[derive(Debug, Default)]
pub(super) struct Floats {
    memory: Vec<f32>,
    used: usize,
}

impl Floats {
    /// Makes room for the floats of one frame; what they are comes later.
    fn lay_out(&mut self, used: usize) {
        if self.memory.len() < used {
            self.memory.reserve_exact(used - self.memory.len());
            self.memory.resize(used, 0.0);
        }
        self.used = used;
    }
}

#[cfg(test)]
impl From<Vec<f32>> for Floats {
    fn from(memory: Vec<f32>) -> Self {
        let used = memory.len();
        Self { memory, used }
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.used]
    }
}

/// Finds frames in bytes that arrive in pieces of any size.
#[derive(Debug)]
pub(super) struct Decoder {
    generation: Generation,
    head: [u8; HEADER_BYTES + TRAILER_BYTES],
    /// Bytes of `head` that are there.
    have: usize,
    /// The frame whose floats are coming, and how many it has.
    open: Option<(Header, usize)>,
    payload: Floats,
    /// Floats of the payload that are there.
    filled: usize,
    /// A float that was cut by the end of a piece.
    cut: [u8; 4],
    cut_len: usize,
}

impl Decoder {
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            head: [0; HEADER_BYTES + TRAILER_BYTES],
            have: 0,
            open: None,
            payload: Floats::default(),
            filled: 0,
            cut: [0; 4],
            cut_len: 0,
        }
    }

    /// Uses up bytes from the front of `input`; true when a frame is whole, which [`Decoder::take`] then gives.
    ///
    /// *Errors*: [`WireError`], before any memory is given to the frame.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<bool, WireError> {
        while self.open.is_none() {
            let need = self.head_bytes();
            if self.have < need {
                let count = input.len().min(need - self.have);
                let (now, later) = input.split_at(count);
                self.head[self.have..][..count].copy_from_slice(now);
                *input = later;
                self.have += count;
            }
            if self.have < need {
                return Ok(false);
            }
            // With the fixed part in, `head_bytes` knows whether a trailer follows.
            if self.have == self.head_bytes() {
                let open = self.parse_head()?;
                self.payload.lay_out(open.1);
                self.filled = 0;
                self.open = Some(open);
            }
        }
        Ok(self.feed_floats(input))
    }

    fn head_bytes(&self) -> usize {
        let trailer = self.have >= HEADER_BYTES && self.head[17] & HAS_TRAILER != 0;
        if trailer { HEADER_BYTES + TRAILER_BYTES } else { HEADER_BYTES }
    }

    fn parse_head(&self) -> Result<(Header, usize), WireError> {
        let mut from = Reader(&self.head);
        let (generation, sequence) = (Generation(from.u64()), Sequence(from.u64()));
        if generation != self.generation {
            return Err(WireError::Generation { got: generation, want: self.generation });
        }
        let [op, flags, zero @ ..] = from.take::<4>();
        let op = *OpKind::ALL.get(usize::from(op)).ok_or(WireError::Op(op))?;
        if flags & !(HAS_TRAILER | HALVES) != 0 || zero != [0, 0] {
            return Err(WireError::Flags(u32::from_le_bytes([flags, zero[0], zero[1], 0])));
        }
        let (operand, round, part, segment, floats) =
            (from.u32(), from.u32(), from.u32(), from.u32(), from.u32());
        if floats as usize > SEGMENT {
            return Err(WireError::TooLong { floats });
        }
        let has_trailer = flags & HAS_TRAILER != 0;
        let trailer = has_trailer.then(|| Trailer::of_words(std::array::from_fn(|_| from.u64())));
        let tag = Tag { generation, sequence, op, operand, round, part, segment };
        let wire = if flags & HALVES != 0 { Wire::Bf16 } else { Wire::F32 };
        Ok((Header { tag, wire, trailer }, floats as usize))
    }

    fn feed_floats(&mut self, input: &mut &[u8]) -> bool {
        let (header, floats) = self.open.expect("a frame is open");
        let width = header.wire.bytes();
        if self.cut_len > 0 {
            let count = input.len().min(width - self.cut_len);
            let (now, later) = input.split_at(count);
            self.cut[self.cut_len..][..count].copy_from_slice(now);
            *input = later;
            self.cut_len += count;
            if self.cut_len < width {
                return false;
            }
            let cut = self.cut;
            self.take_up(header.wire, &cut[..width]);
            self.cut_len = 0;
        }
        let count = (input.len() / width).min(floats - self.filled);
        let (now, later) = input.split_at(count * width);
        self.take_up(header.wire, now);
        *input = later;
        if self.filled == floats {
            return true;
        }
        self.cut_len = input.len();
        self.cut[..self.cut_len].copy_from_slice(input);
        *input = &[];
        false
    }

    /// Takes up whole floats behind those that are there.
    fn take_up(&mut self, wire: Wire, bytes: &[u8]) {
        let count = bytes.len() / wire.bytes();
        let out = &mut self.payload.memory[self.filled..][..count];
        match wire {
            Wire::F32 => from_bytes(out, bytes.as_chunks::<4>().0),
            Wire::Bf16 => from_halves(out, bytes.as_chunks::<2>().0),
        }
        self.filled += count;
    }

    /// The frame that is whole; the next one's floats go into `spare`. *Panics* if none is whole.
    pub fn take(&mut self, spare: Floats) -> (Header, Floats) {
        let (header, floats) = self.open.take().expect("a frame is whole");
        assert_eq!(self.filled, floats, "the frame is not whole");
        self.have = 0;
        (header, std::mem::replace(&mut self.payload, spare))
    }

    /// Whether the bytes so far end where a frame ends.
    pub fn is_between_frames(&self) -> bool {
        self.have == 0
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
