//! What goes in comes out, however the bytes are cut; what was changed gives an error or another frame, never a crash.
//!
//! `PROPTEST_CASES=1000000` makes the search as long as you like.

use super::*;
use proptest::prelude::*;

const GENERATION: Generation = Generation(7);

type Whole = (Header, Vec<f32>);

fn trailer() -> impl Strategy<Value = Trailer> {
    (any::<[u64; 6]>(), any::<[u32; 2]>()).prop_map(|(words, [stop, non_finite])| Trailer {
        loss: f64::from_bits(words[0]),
        weight: f64::from_bits(words[1]),
        samples: words[2],
        predictions: words[3],
        correct: words[4],
        check: words[5],
        stop,
        non_finite,
    })
}

fn frame() -> impl Strategy<Value = Whole> {
    let floats = prop_oneof![Just(0usize), 1..40usize, Just(SEGMENT)];
    let payload = floats.prop_flat_map(|len| {
        any::<u32>().prop_map(move |seed| {
            (0..len as u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761) ^ seed)).collect()
        })
    });
    let numbers = (any::<u64>(), 0..OpKind::ALL.len(), any::<[u32; 4]>());
    let wire = prop_oneof![Just(Wire::F32), Just(Wire::Bf16)];
    (numbers, wire, proptest::option::of(trailer()), payload).prop_map(
        |((sequence, op, [operand, round, part, segment]), wire, trailer, mut payload): (
            _,
            Wire,
            _,
            Vec<f32>,
        )| {
            wire.round(&mut payload);
            let (generation, sequence) = (GENERATION, Sequence(sequence));
            let tag = Tag { generation, sequence, op: OpKind::ALL[op], operand, round, part, segment };
            (Header { tag, wire, trailer }, payload)
        },
    )
}

/// Comparable even where a float is not a number.
fn shown((header, payload): &Whole) -> (Tag, Wire, Option<Vec<u8>>, Vec<u32>) {
    let trailer = header.trailer.map(|trailer| {
        let mut bytes = vec![0; TRAILER_BYTES];
        write_trailer(&mut bytes, &trailer);
        bytes
    });
    (header.tag, header.wire, trailer, payload.iter().map(|float| float.to_bits()).collect())
}

fn encode(frames: &[Whole]) -> Vec<u8> {
    let mut bytes = FrameBytes::default();
    let mut all = Vec::new();
    for (header, payload) in frames {
        bytes.fill(header, payload);
        all.extend_from_slice(bytes.as_ref());
    }
    all
}

/// Feeds `bytes` in pieces of at most `piece`; the most memory that a frame got, beside the frames.
fn decode(bytes: &[u8], piece: usize) -> Result<(Vec<Whole>, bool), WireError> {
    let mut decoder = Decoder::new(GENERATION);
    let mut frames = Vec::new();
    for mut input in bytes.chunks(piece) {
        while decoder.feed(&mut input)? {
            let (header, floats) = decoder.take(Floats::default());
            frames.push((header, floats.to_vec()));
        }
        assert!(input.is_empty(), "bytes were left over");
        assert!(decoder.payload.memory.capacity() <= SEGMENT, "memory was given to what no frame may have");
    }
    Ok((frames, decoder.is_between_frames()))
}

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut(
        frames in proptest::collection::vec(frame(), 0..5),
        piece in prop_oneof![Just(1usize), 2..200usize, Just(1 << 20)],
    ) {
        // Byte by byte is for the shapes; large payloads would only take long.
        let small = frames.iter().all(|(_, payload)| payload.len() < 100);
        let piece = if small { piece } else { piece.max(50) };
        let (got, between) = decode(&encode(&frames), piece).expect("good frames");
        prop_assert!(between);
        let (got, want): (Vec<_>, Vec<_>) = (got.iter().map(shown).collect(), frames.iter().map(shown).collect());
        prop_assert_eq!(got, want);
    }

    #[test]
    fn a_changed_frame_gives_an_error_or_other_frames_and_never_a_crash_or_more_memory(
        frames in proptest::collection::vec(frame(), 1..4),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
        piece in 1..5_000usize,
    ) {
        let mut bytes = encode(&frames);
        for (at, byte, how) in changes {
            // Mostly in the headers: floats may be anything.
            let at = at.index(bytes.len().clamp(1, 120));
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at.min(bytes.len() - 1))),
                _ => {}
            }
        }
        if let Ok((got, _)) = decode(&bytes, piece) {
            let sound = |(header, payload): &Whole| {
                payload.len() <= SEGMENT && header.tag.generation == GENERATION
            };
            prop_assert!(got.iter().all(sound));
        }
    }

    #[test]
    fn a_hello_survives_and_a_changed_one_is_refused_or_another(numbers in any::<[u32; 3]>(), generation: u64, at in 0..HELLO_BYTES, byte: u8) {
        let hello = Hello { generation: Generation(generation), from: numbers[0], to: numbers[1], world: numbers[2] };
        let mut bytes = hello.encode();
        prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        bytes[at] = byte;
        match Hello::decode(&bytes) {
            Ok(other) => prop_assert_eq!(other.encode(), bytes),
            Err(_) => prop_assert!(at < 12),
        }
    }
}

/// Of a first frame.
const FIRST: Tag = Tag {
    generation: GENERATION,
    sequence: Sequence(1),
    op: OpKind::AllReduce,
    operand: 1,
    round: 0,
    part: 0,
    segment: 0,
};

#[test]
fn a_frame_of_four_gigabytes_is_refused_by_its_header_alone() {
    let good = encode(&[(Header { tag: FIRST, wire: Wire::F32, trailer: None }, Vec::new())]);
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        decode(&bytes, 1 << 20).map(|(frames, _)| frames.len())
    };
    assert_eq!(with(36, &[0; 4]), Ok(1));
    assert_eq!(with(36, &(1u32 << 30).to_le_bytes()), Err(WireError::TooLong { floats: 1 << 30 }));
    assert_eq!(with(36, &u32::MAX.to_le_bytes()), Err(WireError::TooLong { floats: u32::MAX }));
    let most = SEGMENT as u32;
    assert_eq!(with(36, &most.to_le_bytes()), Ok(0), "a full segment is announced and has not come");
    assert_eq!(with(36, &(most + 1).to_le_bytes()), Err(WireError::TooLong { floats: most + 1 }));
    assert_eq!(with(16, &[6]), Err(WireError::Op(6)));
    assert_eq!(with(17, &[2]), Ok(1), "no floats in halves");
    assert_eq!(with(17, &[4]), Err(WireError::Flags(4)));
    assert_eq!(with(18, &[0, 1]), Err(WireError::Flags(1 << 16)));
    let other = WireError::Generation { got: Generation(8), want: GENERATION };
    assert_eq!(with(0, &[8]), Err(other));
}

#[test]
fn rounded_floats_have_two_bytes_each() {
    let mut floats: Vec<f32> = (0..1_000).map(|i| (i as f32 - 500.0) * 0.37).collect();
    Wire::Bf16.round(&mut floats);
    for trailer in [None, Some(Trailer::EMPTY)] {
        let length = |wire| encode(&[(Header { tag: FIRST, wire, trailer }, floats.clone())]).len();
        assert_eq!(length(Wire::F32) - length(Wire::Bf16), 2 * floats.len());
    }
}

#[test]
fn every_collective_has_its_own_number_on_the_wire() {
    for (place, op) in OpKind::ALL.iter().enumerate() {
        assert_eq!(OpKind::ALL.iter().position(|other| other == op), Some(place));
    }
}
