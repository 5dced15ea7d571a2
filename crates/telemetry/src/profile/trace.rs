//! The trace: parts as trace events in JSON, one process a member and one thread a life of it.
//!
//! *Source*: "Trace Event Format", the JSON object format with complete events (`"ph": "X"`). Times are microseconds from
//! the first step on. It does not know what the spans mean.

use super::part::{Part, Span, StepTimes};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Serialize)]
struct RunEvent<'a, A: Serialize> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    args: A,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

#[derive(Serialize)]
struct Sorted {
    sort_index: u32,
}

#[derive(Serialize)]
struct StepArgs {
    step: u64,
    generation: u64,
    rank: u32,
    world: u32,
}

#[derive(Serialize)]
struct SpanArgs {
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_batch: Option<u32>,
}

/// The zero of a trace, and what is added to the times of each clock to count from there.
///
/// The ranks of one host have one clock and fit exactly; hosts fit as well as their times of day do.
struct Zero<'a>(BTreeMap<&'a str, i128>);

impl<'a> Zero<'a> {
    fn of(parts: &'a [Part]) -> Self {
        let mut shifts: BTreeMap<&str, i128> = BTreeMap::new();
        for part in parts {
            shifts.entry(&part.clock).or_insert(i128::from(part.to_unix));
        }
        let firsts = parts.iter().filter_map(|part| {
            let first = part.steps.first()?;
            Some(i128::from(first.begun) + shifts[part.clock.as_str()])
        });
        let zero = firsts.min().unwrap_or(0);
        shifts.values_mut().for_each(|shift| *shift -= zero);
        Self(shifts)
    }

    /// *Units*: nanoseconds in, microseconds out.
    fn micros(&self, part: &Part, nanos: u64) -> f64 {
        (i128::from(nanos) + self.0[part.clock.as_str()]) as f64 / 1e3
    }
}

/// Threads from here on show what was on its way while the thread that many before computed.
const AHEAD: u32 = 1 << 16;

/// Writes the trace of these parts.
///
/// *Errors*: of the writer. *Order*: parts as they are given, steps and spans by time.
pub fn write(parts: &[Part], out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut trace = Trace { out, zero: Zero::of(parts), any: false };
    for part in parts {
        trace.names(part)?;
        for step in &part.steps {
            trace.step(part, step)?;
        }
    }
    out.write_all(b"\n]}\n")
}

struct Trace<'a, W> {
    out: &'a mut W,
    zero: Zero<'a>,
    any: bool,
}

impl<W: Write> Trace<'_, W> {
    fn event<A: Serialize>(&mut self, event: &RunEvent<'_, A>) -> io::Result<()> {
        self.out.write_all(if std::mem::replace(&mut self.any, true) { b",\n" } else { b"\n" })?;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn names(&mut self, part: &Part) -> io::Result<()> {
        let rank = part.steps.last().map_or("no step".to_owned(), |step| format!("rank {}", step.rank));
        let process = format!("{rank} (member {}) on {}", part.member, part.host);
        let life = format!("compute, life {}, pid {}", part.incarnation, part.pid);
        self.meta(part, "process_name", Named { name: process })?;
        self.meta(part, "process_sort_index", Sorted { sort_index: part.member.0 })?;
        self.meta(part, "thread_name", Named { name: life })?;
        if part.steps.iter().any(|step| step.ahead().is_some()) {
            let name = format!("communication meanwhile, life {}", part.incarnation);
            self.meta_of(part, AHEAD, "thread_name", Named { name })?;
        }
        Ok(())
    }

    fn meta<A: Serialize>(&mut self, part: &Part, name: &str, args: A) -> io::Result<()> {
        self.meta_of(part, 0, name, args)
    }

    fn meta_of<A: Serialize>(&mut self, part: &Part, on: u32, name: &str, args: A) -> io::Result<()> {
        let (pid, tid) = (part.member.0, part.incarnation.0 + on);
        self.event(&RunEvent { name, cat: "__metadata", ph: "M", ts: None, dur: None, pid, tid, args })
    }

    fn step(&mut self, part: &Part, step: &StepTimes) -> io::Result<()> {
        let (pid, tid) = (part.member.0, part.incarnation.0);
        let number = step.step.0;
        let args =
            StepArgs { step: number, generation: step.generation.0, rank: step.rank.0, world: step.world.0 };
        let (ts, dur) = self.times(part, step.begun, step.nanos());
        self.event(&RunEvent { name: "step", cat: "step", ph: "X", ts, dur, pid, tid, args })?;
        let spans = step.spans.iter().map(|span| (*span, tid));
        for (span, tid) in spans.chain(step.ahead().map(|ahead| (ahead, tid + AHEAD))) {
            let Span { doing, begun, micro_batch, .. } = span;
            let args = SpanArgs { step: number, micro_batch: micro_batch.map(|m| m.0) };
            let (ts, dur) = self.times(part, begun, span.nanos());
            self.event(&RunEvent { name: doing.name(), cat: "part", ph: "X", ts, dur, pid, tid, args })?;
        }
        Ok(())
    }

    fn times(&self, part: &Part, begun: u64, nanos: u64) -> (Option<f64>, Option<f64>) {
        (Some(self.zero.micros(part, begun)), Some(nanos as f64 / 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::Doing;
    use super::*;
    use dtrain_types::{Generation, Incarnation, MemberId, MicroBatch, Rank, Step, WorldSize};

    fn part(member: u32, clock: &str, to_unix: i64, begun: u64) -> Part {
        let span = Span {
            doing: Doing::Forward,
            begun: begun + 100,
            ended: begun + 1_600,
            micro_batch: Some(MicroBatch(3)),
        };
        let step = StepTimes {
            step: Step(9),
            generation: Generation(2),
            rank: Rank(member),
            world: WorldSize(2),
            begun,
            ended: begun + 2_000,
            offered: None,
            spans: vec![span],
        };
        Part {
            member: MemberId(member),
            incarnation: Incarnation(member + 5),
            host: "here".into(),
            pid: 77,
            clock: clock.into(),
            to_unix,
            steps: vec![step],
        }
    }

    fn events(parts: &[Part]) -> Vec<serde_json::Value> {
        let mut text = Vec::new();
        write(parts, &mut text).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").cloned().collect()
    }

    #[test]
    fn a_span_is_a_complete_event_of_its_member_and_life() {
        let events = events(&[part(1, "one", 1_000_000, 500)]);
        assert_eq!(events[0]["name"], "step");
        assert_eq!((events[0]["ts"].as_f64(), events[0]["dur"].as_f64()), (Some(0.0), Some(2.0)));
        assert_eq!(
            (events[0]["args"]["generation"].as_u64(), events[0]["args"]["rank"].as_u64()),
            (Some(2), Some(1))
        );
        let forward = &events[1];
        assert_eq!((forward["ts"].as_f64(), forward["dur"].as_f64()), (Some(0.1), Some(1.5)));
        assert_eq!((forward["pid"].as_u64(), forward["tid"].as_u64()), (Some(1), Some(6)));
        assert_eq!(
            (forward["args"]["step"].as_u64(), forward["args"]["micro_batch"].as_u64()),
            (Some(9), Some(3))
        );
    }

    #[test]
    fn what_was_on_its_way_while_a_rank_computed_has_a_line_of_its_own() {
        let mut part = part(1, "one", 0, 500);
        let wait = Span { doing: Doing::Wait, begun: 2_100, ended: 2_400, micro_batch: None };
        (part.steps[0].offered, part.steps[0].spans) = (Some(1_500), vec![part.steps[0].spans[0], wait]);
        let events = events(&[part]);
        let [_step, _forward, _wait, ahead] = &events[..] else { panic!("{events:?}") };
        assert_eq!(ahead["name"], "communication");
        assert_eq!((ahead["ts"].as_f64(), ahead["dur"].as_f64()), (Some(1.0), Some(0.6)));
        assert_eq!(ahead["tid"].as_u64(), Some(u64::from(AHEAD) + 6));
    }

    #[test]
    fn ranks_of_one_clock_fit_exactly_and_hosts_by_their_time_of_day() {
        // The second rank read the time of day a little later than the first: that must not move it.
        let one_host = events(&[part(0, "one", 1_000, 500), part(1, "one", 1_007, 600)]);
        assert_eq!((one_host[0]["ts"].as_f64(), one_host[2]["ts"].as_f64()), (Some(0.0), Some(0.1)));
        let two = events(&[part(0, "one", 1_000, 500), part(1, "two", 500, 3_000)]);
        assert_eq!((two[0]["ts"].as_f64(), two[2]["ts"].as_f64()), (Some(0.0), Some(2.0)));
    }

    #[test]
    fn no_parts_make_an_empty_trace() {
        assert!(events(&[]).is_empty());
    }
}
