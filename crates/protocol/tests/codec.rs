//! The bytes on the control link: pinned by golden headers, and proof against every change on the way.

use dtrain_protocol::{
    Activity, BOOTSTRAP_BYTES, BootId, Bootstrap, CheckpointId, ClockReading, CodecError, Decoder, Digest,
    Directive, ExitCause, Failure, Fingerprint, Goodbye, HEADER_BYTES, Heartbeat, Hello, LastLines,
    LifeOrder, LifeReport, MAX_PAYLOAD, MAX_TEXT, Membership, Message, NodeOrder, NodeReport, Number,
    OutputLine, Participant, Pending, Phase, Profile, RankSetup, Report, ResumePoint, ShardFile,
    ShardOutcome, ShardReport, Stage, StateSource, StepRecord, StopFlag, UnixNanos, VERSION, ValidationPart,
    cut_text, encode,
};
use dtrain_types::{
    Bytes, Epoch, Generation, Holding, Incarnation, Instance, MemberId, MicroBatch, MicroRange, NodeId, Rank,
    Step, Trailer,
};
use proptest::prelude::*;

fn report() -> Report {
    let trailer = Trailer { loss: 0.5, weight: 4.0, samples: 4, ..Trailer::EMPTY };
    let step = StepRecord {
        generation: Generation(2),
        step: Step(7),
        epoch: Epoch(1),
        trailer,
        seconds: 0.25,
        busy: 0.125,
        lr: 1e-3,
        gradient_norm: 2.0,
    };
    let id = CheckpointId { generation: Generation(2), step: Step(6) };
    let file =
        ShardFile { name: "rank-00001.safetensors".to_owned(), bytes: Bytes(99), digest: Digest([3; 32]) };
    Report {
        instance: Some(Instance(1)),
        generation: Generation(2),
        member: MemberId(3),
        incarnation: Incarnation(4),
        number: Number(6),
        seen: Number(7),
        profile: Profile {
            fingerprint: Fingerprint {
                isa: "avx2".to_owned(),
                self_test: Digest([1; 32]),
                kernel_revision: 1,
            },
            pid: 8,
            host: "a".to_owned(),
            device: "cpu".to_owned(),
            address: Some(([10, 0, 0, 1], 29_401).into()),
            sees_run_folder: true,
        },
        stage: Stage::Failed(Failure::NonFinite { step: Step(8), micro_batch: Some(MicroBatch(2)) }),
        activity: Activity::Reducing,
        applied: Some(Step(7)),
        holding: Holding::of([0..7, 300..1024]),
        bootstrap: Some(bootstrap()),
        verified: Some((Step(5), Digest([2; 32]))),
        steps: vec![step],
        validations: vec![ValidationPart {
            step: Step(4),
            parts: vec![(MicroRange { lo: 0, hi: 2 }, trailer)],
            counts: vec![1, 2, 3],
        }],
        shards: vec![ShardReport {
            id,
            rank: Rank(1),
            outcome: ShardOutcome::Durable { file, digest: Digest([6; 32]), state_digest: Digest([4; 32]) },
        }],
    }
}

fn bootstrap() -> Bootstrap {
    Bootstrap(std::array::from_fn(|at| at as u8))
}

fn directive() -> Directive {
    let participant = |m| Participant {
        member: MemberId(m),
        incarnation: Incarnation(1),
        node: NodeId(0),
        address: None,
        sees_run_folder: true,
        range: MicroRange { lo: m * 2, hi: m * 2 + 2 },
    };
    Directive {
        instance: Instance(1),
        generation: Generation(2),
        member: MemberId(3),
        incarnation: Incarnation(4),
        number: Number(6),
        phase: Phase::Run,
        membership: Membership { participants: vec![participant(0), participant(1)], unmirrored: 1 },
        resume_point: ResumePoint { step: Step(6), source: StateSource::Ranks(vec![Rank(0)]) },
        bootstrap: Some(bootstrap()),
        pending: Pending { validate: true, checkpoint: true, ends: false },
        acknowledged: Step(7),
        validated: Step(4),
        enough: Some(Step(9)),
        settled: CheckpointId { generation: Generation(1), step: Step(3) },
        stop: StopFlag::DRAIN,
    }
}

fn messages() -> Vec<Message> {
    let member = MemberId(3);
    vec![
        Message::Report(Box::new(report())),
        Message::Directive(Box::new(directive())),
        Message::Heartbeat(Heartbeat {
            instance: Instance(1),
            generation: Generation(2),
            member,
            incarnation: Incarnation(4),
            number: Number(5),
        }),
        Message::RankSetup(RankSetup::of(&("name: digits\n", 7u64))),
        Message::Hello(Hello { member, incarnation: Incarnation(4), revision: "abc".to_owned() }),
        Message::NodeReport(Box::new(NodeReport {
            instance: Some(Instance(1)),
            generation: Generation(2),
            node: NodeId(2),
            boot: BootId(9),
            number: Number(5),
            seen: Number(4),
            host: "a".to_owned(),
            ranks: 2,
            lives: vec![LifeReport {
                member,
                incarnation: Incarnation(4),
                ended: Some(ExitCause::Signal(9)),
            }],
            leaving: false,
        })),
        Message::NodeOrder(Box::new(NodeOrder {
            instance: Instance(1),
            generation: Generation(2),
            node: NodeId(2),
            boot: BootId(9),
            number: Number(5),
            members: vec![LifeOrder { member, incarnation: Incarnation(5), alive: true }],
            leave: false,
        })),
        Message::Goodbye(Goodbye { code: 3, why: "over".to_owned() }),
        Message::Clock(ClockReading { heard: UnixNanos(7), said: UnixNanos(9) }),
        Message::LastLines(LastLines { member, lines: vec!["one".to_owned(), "two".to_owned()] }),
        Message::Output(OutputLine { member, line: "three".to_owned() }),
    ]
}

fn framed(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("it fits");
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// All messages that `bytes` give, and the error they end with.
fn read(decoder: &mut Decoder, bytes: &[u8]) -> (Vec<Message>, Option<CodecError>) {
    decoder.push(bytes);
    let mut out = Vec::new();
    loop {
        match decoder.pull() {
            Ok(Some(message)) => out.push(message),
            Ok(None) => return (out, None),
            Err(error) => return (out, Some(error)),
        }
    }
}

#[test]
fn the_bytes_of_every_kind_are_pinned() {
    // A header holds kind, length and checksum, so it pins the payload too. If this fails, raise VERSION.
    let headers: Vec<String> = messages().iter().map(|m| hex(&framed(m)[..HEADER_BYTES])).collect();
    assert_eq!(headers, GOLDEN_HEADERS);
    assert_eq!(hex(&framed(&messages()[2])[HEADER_BYTES..]), GOLDEN_HEARTBEAT);
}

const GOLDEN_HEADERS: [&str; 11] = [
    "4454524e0e000100f302000006514621",
    "4454524e0e0002002501000001fd1de3",
    "4454524e0e00030020000000676d8eea",
    "4454524e0e0004002500000045884903",
    "4454524e0e00050013000000d8fa755f",
    "4454524e0e00060054000000f15b2e6e",
    "4454524e0e000700360000001db1e24f",
    "4454524e0e0008000d0000002deb262e",
    "4454524e0e0009001000000009c2a79b",
    "4454524e0e000a00220000007d5a2254",
    "4454524e0e000b0011000000e86f6750",
];
const GOLDEN_HEARTBEAT: &str = "0100000000000000020000000000000003000000040000000500000000000000";

#[test]
fn a_run_that_needs_no_bootstrap_carries_a_byte_for_it_and_one_that_does_carries_it_whole() {
    let length = |message: Message| framed(&message).len();
    let without = length(Message::Directive(Box::new(Directive { bootstrap: None, ..directive() })));
    assert_eq!(length(Message::Directive(Box::new(directive()))), without + BOOTSTRAP_BYTES);
    let without = length(Message::Report(Box::new(Report { bootstrap: None, ..report() })));
    assert_eq!(length(Message::Report(Box::new(report()))), without + BOOTSTRAP_BYTES);
}

#[test]
fn every_message_comes_back_in_order_from_any_portions() {
    let bytes: Vec<u8> = messages().iter().flat_map(framed).collect();
    for portion in [1, 7, 16, 17, 1000, bytes.len()] {
        let (mut decoder, mut got) = (Decoder::default(), Vec::new());
        for part in bytes.chunks(portion) {
            let (messages, error) = read(&mut decoder, part);
            assert_eq!(error, None);
            got.extend(messages);
        }
        assert_eq!(got, messages());
        assert_eq!(decoder.waiting(), 0);
    }
}

#[test]
fn a_claimed_length_above_the_limit_is_refused_by_the_header_alone() {
    let mut bytes = framed(&messages()[2]);
    bytes[8..12].copy_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
    let (_, error) = read(&mut Decoder::default(), &bytes[..HEADER_BYTES]);
    assert_eq!(error, Some(CodecError::TooLong { bytes: MAX_PAYLOAD + 1 }));
}

#[test]
fn a_message_above_the_limit_is_not_sent() {
    let mut out = vec![1, 2, 3];
    let message = Message::RankSetup(RankSetup::of(&"x".repeat(MAX_PAYLOAD)));
    assert!(encode(&message, &mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn another_version_is_named() {
    let mut bytes = framed(&messages()[2]);
    bytes[4] = 77;
    let (_, error) = read(&mut Decoder::default(), &bytes);
    assert_eq!(error, Some(CodecError::Version { got: 77 }));
    assert_eq!(error.map(|e| e.to_string()), Some(format!("frame version 77, this side has {VERSION}")));
}

#[test]
fn a_claimed_list_longer_than_the_payload_is_refused_without_allocating_it() {
    // A sealed frame with a good checksum, whose body says that a list of 2^63 bytes follows.
    let mut bytes = framed(&Message::RankSetup(RankSetup::of(&12_345_678u64)));
    bytes[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[HEADER_BYTES..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let (_, error) = read(&mut Decoder::default(), &bytes);
    assert_eq!(error, Some(CodecError::Payload { kind: 4 }));
}

#[test]
fn after_an_error_the_decoder_stays_broken() {
    let mut decoder = Decoder::default();
    let (_, error) = read(&mut decoder, b"GET / HTTP/1.1\r\n");
    assert_eq!(error, Some(CodecError::Magic(*b"GET ")));
    assert_eq!(read(&mut decoder, &framed(&messages()[2])), (vec![], error));
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let text = "ä".repeat(MAX_TEXT);
    assert_eq!(cut_text(&text).len(), MAX_TEXT);
    assert_eq!(cut_text(&format!("x{text}")).len(), MAX_TEXT - 1);
    assert_eq!(cut_text("short"), "short");
}

proptest! {
    #[test]
    fn a_frame_with_any_byte_changed_is_an_error_or_waits_for_more(
        which in 0usize..8, place: prop::sample::Index, flip in 1u8..=255,
    ) {
        let mut bytes = framed(&messages()[which]);
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        let (got, error) = read(&mut Decoder::default(), &bytes);
        prop_assert!(got.is_empty());
        // A longer length only means that the frame is not there yet.
        prop_assert!(error.is_some() || (8..12).contains(&at));
    }

    #[test]
    fn a_body_with_bytes_changed_under_a_good_checksum_never_panics(
        which in 0usize..8, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = framed(&messages()[which]);
        bytes.truncate(HEADER_BYTES + cut.index(bytes.len() - HEADER_BYTES) + 1);
        for (place, value) in changes {
            let at = HEADER_BYTES + place.index(bytes.len() - HEADER_BYTES);
            bytes[at] = value;
        }
        let length = (bytes.len() - HEADER_BYTES) as u32;
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[HEADER_BYTES..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        let (got, error) = read(&mut Decoder::default(), &bytes);
        prop_assert_eq!(got.len() + usize::from(error.is_some()), 1);
    }

    #[test]
    fn any_bytes_give_an_error_or_wait(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (got, _) = read(&mut Decoder::default(), &bytes);
        prop_assert!(got.is_empty());
    }
}
