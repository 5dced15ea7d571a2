//! What a rank tells all others in every collective, beside the floats: what it is doing, and the trailers of its roots.
//!
//! One fixed size for all ranks and all collectives of a generation, so that ranks in different collectives still
//! understand each other, and each finds out. It is bytes in one order, whatever machine wrote them.

use dtrain_collective::{CollectiveError, Geometry, Intent, OpKind};
use dtrain_types::{Generation, Rank, Reduce, Trailer};

/// Bytes of a trailer, and of what stands before the trailers.
const PART: usize = 64;

/// Bytes of a record in a step of so many micro-batches: from what all ranks know alike, whatever arenas they have, for all records have one size.
pub(crate) fn size(micro_batches: u32, mode: Reduce) -> usize {
    (1 + Geometry::bound(0, micro_batches, mode).root_slots) * PART
}

/// Bytes that the records of all ranks take on a device.
#[must_use]
pub fn record_bytes(ranks: u32, micro_batches: u32, mode: Reduce) -> usize {
    ranks as usize * size(micro_batches, mode)
}

/// Writes a record. *Panics* if there are more trailers than room.
pub(crate) fn write(record: &mut [u8], generation: Generation, intent: Intent, trailers: &[Trailer]) {
    let kind = OpKind::ALL.iter().position(|kind| *kind == intent.kind).expect("all kinds are listed") as u64;
    put(record, [generation.0, intent.sequence.0, kind, u64::from(intent.operand), trailers.len() as u64]);
    for (part, trailer) in record[PART..][..trailers.len() * PART].chunks_exact_mut(PART).zip(trailers) {
        put(part, trailer.words());
    }
}

/// Compares what a peer is doing with what this rank is doing.
///
/// *Errors*: [`CollectiveError::Mismatch`], [`CollectiveError::Superseded`].
pub(crate) fn agree(
    record: &[u8],
    from: Rank,
    generation: Generation,
    intent: Intent,
) -> Result<(), CollectiveError> {
    let [theirs, sequence, kind, operand, _] = get(record);
    if theirs != generation.0 {
        return Err(CollectiveError::Superseded { from, generation });
    }
    let kind = OpKind::ALL.get(kind as usize).copied();
    let ours = (intent.sequence.0, Some(intent.kind), u64::from(intent.operand));
    if (sequence, kind, operand) == ours {
        return Ok(());
    }
    let kind = kind.map_or("something unknown".to_owned(), |kind| format!("{kind:?}"));
    Err(CollectiveError::Mismatch {
        from,
        sequence: intent.sequence,
        theirs: format!("{kind} {operand} as number {sequence}"),
        ours: format!("{:?} {} as number {}", intent.kind, intent.operand, intent.sequence),
    })
}

/// Reads the trailer of one root.
pub(crate) fn trailer(record: &[u8], root: usize) -> Trailer {
    Trailer::of_words(get(&record[(1 + root) * PART..]))
}

fn put<const N: usize>(to: &mut [u8], words: [u64; N]) {
    for (bytes, word) in to.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

fn get<const N: usize>(from: &[u8]) -> [u64; N] {
    std::array::from_fn(|i| u64::from_le_bytes(from[i * 8..][..8].try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_collective::Sequence;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let trailer_of = |i: u64| Trailer {
            loss: -0.0,
            weight: 1.0 / (i + 3) as f64,
            samples: i,
            predictions: u64::MAX - i,
            correct: 7 * i,
            check: u64::MAX / (i + 2),
            stop: 1 << 31 | i as u32,
            non_finite: u32::MAX - i as u32,
        };
        let trailers: Vec<Trailer> = (0..3).map(trailer_of).collect();
        let mut bytes = vec![0xaa; 5 * PART];
        for (kind, operand) in OpKind::ALL.into_iter().zip([16, 9, 0, 3, 0, u32::MAX]) {
            let intent = Intent { sequence: Sequence(1 << 40 | 5), kind, operand };
            write(&mut bytes, Generation(9), intent, &trailers);
            assert_eq!(agree(&bytes, Rank(2), Generation(9), intent), Ok(()));
            let got: Vec<Trailer> = (0..3).map(|root| trailer(&bytes, root)).collect();
            assert_eq!(got, trailers);
            assert!(got.iter().all(|trailer| trailer.loss.is_sign_negative()));
            let later = Intent { sequence: Sequence(1 << 40 | 6), ..intent };
            let found = agree(&bytes, Rank(2), Generation(9), later);
            assert!(matches!(found, Err(CollectiveError::Mismatch { from: Rank(2), .. })), "{found:?}");
            let found = agree(&bytes, Rank(2), Generation(10), intent);
            assert!(matches!(found, Err(CollectiveError::Superseded { .. })), "{found:?}");
        }
    }
}
