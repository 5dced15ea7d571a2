//! Sabotage: one promise of a driver broken at a time, to prove that the checkers would notice.
//!
//! Each names what the machines rely on. A sweep with one of them must find a seed that breaks something; a promise that
//! nothing needs would be found here.

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// A frame of an older generation is handed over as one of the newest.
    UnfencedFrames,
    /// A rank says that it has left a generation while an update of it is still under way.
    LeftTooEarly,
    /// A copied state is taken over when all but its last window is there.
    HalfCopy,
    /// A shard is called durable before it is synced.
    EarlyDurable,
    /// A manifest that was renamed is said not to be written.
    DeniedManifest,
    /// A manifest is said to be written and is not.
    PhantomManifest,
    /// A life is said to have ended when it was told to end.
    EndedTooEarly,
    /// The stop flag is not set.
    ForgottenStop,
    /// Members are told that everything is recorded.
    FalseAcknowledgement,
    /// A step goes on although the validation before it is not recorded.
    UnawaitedValidation,
    /// The order of a rank's news is lost.
    ShuffledNews,
    /// Part of a gradient is given away before its last micro-batch is added.
    UnfinishedOffer,
    /// The update of a shared state is decided before all have measured it.
    UnmetMeasure,
    /// A step of a shared state is committed before all have done their shares.
    UnmetUpdate,
    /// A shared state is left and not closed.
    Unclosed,
    /// What was decided in a shared state is not completed.
    Uncompleted,
    /// A rank leaves a shared state and says nothing of the step that others decided.
    UntoldUpdate,
    /// The word that tells which block lies in a journal dies with its rank.
    LostJournal,
    /// The slot of the sum is written before an update that was left is completed.
    ReusedSum,
    /// A rank that is behind goes on with what it holds, and does not make the update that it measured.
    LeftBehind,
    /// A rank that holds shards keeps the parameters that it had of the rest, and does not have them brought anew.
    KeptParameters,
    /// Whoever holds a part of a state is taken for one who holds all of it.
    PartAsWhole,
    /// A rank is sent the sum of what it owns, and not of what it mirrors.
    OwnedAlone,
    /// A rank that leaves an open step keeps nothing of its sum.
    LostSum,
    /// What ranks tell one another of a sum is left in its place.
    OverwrittenSum,
    /// What was lost with a rank is never mirrored anew.
    Unmirrored,
    /// In a round ranks compute each other's micro-batches.
    OtherMicroBatch,
    /// A rank without a micro-batch takes no part in a round, or in what is left of a validation.
    IdleRank,
    /// A pass goes on with a window of parameters that one before it was brought.
    OldWindow,
    /// What ranks need of a window is said of the first one of a pass alone.
    OldNeeds,
    /// The rounds of a generation are those of the first one.
    OldRounds,
    /// A step that was left goes on behind the rounds that it had made.
    HalfStep,
    /// A host sends what it has before all its ranks have added up.
    UnmetFold,
    /// Hosts take their time to call a supervisor that stood still.
    LateCall,
    /// Hosts take their time to call a supervisor that takes over.
    LateRecall,
    /// A step is called recorded when it is entered, before it is on the disk.
    EarlyRecord,
    /// A supervisor that takes over leads by a number that was used before.
    ReusedNumber,
    /// A supervisor that was replaced and is not dead has numbers reserved for it all the same.
    HauntedNumbers,
    /// A supervisor that takes over does not read which validations are written down.
    UnreadValidation,
    /// A generation begins before it is on the disk who computes what in it.
    EarlyRanges,
    /// All are told that the run is over before its ending is on the disk.
    EarlyEnding,
    /// A supervisor that takes over does not read that the run has ended.
    UnreadEnding,
    /// A supervisor that takes over does not read which hosts joined the run.
    UnreadHosts,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 43] = [
        Self::UnfencedFrames,
        Self::LeftTooEarly,
        Self::HalfCopy,
        Self::EarlyDurable,
        Self::DeniedManifest,
        Self::PhantomManifest,
        Self::EndedTooEarly,
        Self::ForgottenStop,
        Self::FalseAcknowledgement,
        Self::UnawaitedValidation,
        Self::ShuffledNews,
        Self::UnfinishedOffer,
        Self::UnmetMeasure,
        Self::UnmetUpdate,
        Self::Unclosed,
        Self::Uncompleted,
        Self::UntoldUpdate,
        Self::LostJournal,
        Self::ReusedSum,
        Self::LeftBehind,
        Self::KeptParameters,
        Self::PartAsWhole,
        Self::OwnedAlone,
        Self::LostSum,
        Self::OverwrittenSum,
        Self::Unmirrored,
        Self::OtherMicroBatch,
        Self::IdleRank,
        Self::OldWindow,
        Self::OldNeeds,
        Self::OldRounds,
        Self::HalfStep,
        Self::UnmetFold,
        Self::LateCall,
        Self::LateRecall,
        Self::EarlyRecord,
        Self::ReusedNumber,
        Self::HauntedNumbers,
        Self::UnreadValidation,
        Self::EarlyRanges,
        Self::EarlyEnding,
        Self::UnreadEnding,
        Self::UnreadHosts,
    ];
}
