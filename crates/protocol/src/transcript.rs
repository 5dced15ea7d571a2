//! What a supervisor was told, and what it answered, written down so that it can be told again.
//!
//! A machine that is told the same inputs at the same times has the same effects: a transcript of a real run, replayed
//! anywhere, shows that nothing but the machine decides. Drivers give it every input as a value of [`Input`]. This file
//! does not know where transcripts are kept.

use crate::bytes::{from_bytes, to_bytes};
use crate::effect::SupervisorEffect;
use crate::host::NodeReport;
use crate::message::{Heartbeat, Report};
use crate::supervisor::{Judgement, Request, Supervisor, SupervisorConfig};
use dtrain_types::{CheckpointId, Generation, Instant, MemberId, NodeId, Step};
use serde::{Deserialize, Serialize};

/// Everything that a supervisor can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// The first one.
    Start,
    /// A member's words.
    Report(Box<Report>),
    /// A member's sign of life.
    Heartbeat(Heartbeat),
    /// A node's words.
    NodeReport(Box<NodeReport>),
    /// The link to a member broke.
    LinkLost(MemberId),
    /// The link to a node broke.
    NodeLost(NodeId),
    /// A manifest was written, or could not be.
    Manifest(CheckpointId, Result<(), String>),
    /// Generations are reserved.
    Reserved(Generation),
    /// Who computes what in a generation is written down.
    Ranges(Generation),
    /// Steps are written down.
    Recorded(Step),
    /// A validation is judged.
    Judged(Step, Judgement),
    /// The ending is written down.
    Ending,
    /// What a person asks.
    Request(Request),
    /// The deadline has come.
    Timeout,
}

impl Supervisor {
    /// Takes in any input.
    pub fn feed(&mut self, now: Instant, input: &Input, effects: &mut Vec<SupervisorEffect>) {
        match input {
            Input::Start => self.start(now),
            Input::Report(report) => self.handle_report(now, report, effects),
            Input::Heartbeat(beat) => self.handle_heartbeat(now, beat),
            Input::NodeReport(report) => self.handle_node_report(now, report, effects),
            Input::LinkLost(member) => self.handle_link_lost(now, *member),
            Input::NodeLost(node) => self.handle_node_lost(now, *node),
            Input::Manifest(id, result) => self.handle_manifest(now, *id, result.clone(), effects),
            Input::Reserved(upto) => self.handle_reserved(now, *upto, effects),
            Input::Ranges(generation) => self.handle_ranges(now, *generation, effects),
            Input::Recorded(step) => self.handle_recorded(now, *step, effects),
            Input::Judged(step, judgement) => self.handle_judged(now, *step, *judgement, effects),
            Input::Ending => self.handle_ending(now, effects),
            Input::Request(request) => self.handle_request(now, *request, effects),
            Input::Timeout => self.handle_timeout(now, effects),
        }
    }
}

/// One input and the effects that it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub now: Instant,
    /// What.
    pub input: Input,
    /// Checksum of the effects, as `Debug` shows them.
    pub effects: u32,
}

impl Line {
    /// The line for an input that had these effects.
    #[must_use]
    pub fn new(now: Instant, input: Input, effects: &[SupervisorEffect]) -> Self {
        Self { now, input, effects: checksum(effects) }
    }
}

fn checksum(effects: &[SupervisorEffect]) -> u32 {
    effects.iter().fold(0, |sum, effect| crc32c::crc32c_append(sum, format!("{effect:?};").as_bytes()))
}

/// The first bytes of a transcript: what the supervisor is made from.
#[must_use]
pub fn head(config: &SupervisorConfig) -> Vec<u8> {
    block(to_bytes(config))
}

/// The bytes of a line.
#[must_use]
pub fn line(line: &Line) -> Vec<u8> {
    block(to_bytes(line))
}

/// A length, and so many bytes.
fn block(bytes: Vec<u8>) -> Vec<u8> {
    let mut block = (bytes.len() as u64).to_le_bytes().to_vec();
    block.extend(bytes);
    block
}

/// Reads a transcript. A torn last line, as a crash leaves it, is passed over.
///
/// *Errors*: in words, where a whole block is no line.
pub fn read(bytes: &[u8]) -> Result<(SupervisorConfig, Vec<Line>), String> {
    let mut rest = bytes;
    let mut next = || -> Option<&[u8]> {
        let (length, after) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let block = after.get(..length)?;
        rest = &after[length..];
        Some(block)
    };
    let config = next().ok_or("the transcript is empty")?;
    let config = from_bytes(config).ok_or("the first block is no configuration of a supervisor")?;
    let mut lines = Vec::new();
    while let Some(block) = next() {
        lines.push(from_bytes(block).ok_or_else(|| format!("block {} is no line", lines.len() + 1))?);
    }
    Ok((config, lines))
}

/// Tells a fresh supervisor everything again. The number of inputs that had the same effects.
///
/// *Errors*: the first input that had others, with both.
pub fn replay(config: SupervisorConfig, lines: &[Line]) -> Result<usize, String> {
    let mut supervisor = Supervisor::new(config);
    let mut effects = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        supervisor.feed(line.now, &line.input, &mut effects);
        if checksum(&effects) != line.effects {
            return Err(format!("input {at}, {:?}, now has these effects: {effects:?}", line.input));
        }
        effects.clear();
    }
    Ok(lines.len())
}
