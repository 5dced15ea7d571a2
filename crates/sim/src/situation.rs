//! Where something stands when a fault meets it.

/// Where something stands when a fault meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Situation {
    /// A process that has no generation yet.
    Start,
    /// A rank that has left what was before and waits for the resume point.
    Form,
    /// A rank that meets its peers.
    Build,
    /// A rank that reads a state.
    Load,
    /// A rank whose state is being copied.
    CopySource,
    /// A rank that copies a state.
    CopyTarget,
    /// A rank that gives or takes shards.
    ShareOut,
    /// A rank that gathers what others hold.
    Gather,
    /// A rank that is ready and waits for the others.
    Ready,
    /// Forward and backward.
    Compute,
    /// Part of the gradient is on its way, and the backward pass goes on.
    Offer,
    /// Contributions are on their way.
    Round1,
    /// Sums are on their way.
    Round2,
    /// The optimizer is at work.
    Update,
    /// A rank writes its share of the update of a shared state.
    UpdateShare,
    /// A rank waits for all that share its state.
    Meet,
    /// A rank completes an update that others have left.
    Complete,
    /// A rank that validates, or waits for the record of a validation.
    Validate,
    /// A rank that waits for the disk.
    Save,
    /// A rank that has seen a stop flag or made its last step.
    Finished,
    /// A rank whose collectives broke off.
    Broken,
    /// A manifest is being written and is not renamed yet.
    BeforeRename,
    /// A manifest is renamed, and the supervisor does not know yet.
    AfterRename,
    /// The world is being put together again after a loss.
    Recovery,
    /// The next boundary is to admit or release somebody.
    Admission,
    /// Nobody of the run is there.
    Nobody,
}

impl Situation {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::Start,
        Self::Form,
        Self::Build,
        Self::Load,
        Self::CopySource,
        Self::CopyTarget,
        Self::ShareOut,
        Self::Gather,
        Self::Ready,
        Self::Compute,
        Self::Offer,
        Self::Round1,
        Self::Round2,
        Self::Update,
        Self::UpdateShare,
        Self::Meet,
        Self::Complete,
        Self::Validate,
        Self::Save,
        Self::Finished,
        Self::Broken,
        Self::BeforeRename,
        Self::AfterRename,
        Self::Recovery,
        Self::Admission,
        Self::Nobody,
    ];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Form => "form",
            Self::Build => "build",
            Self::Load => "load",
            Self::CopySource => "copy<",
            Self::CopyTarget => "copy>",
            Self::ShareOut => "shares",
            Self::Gather => "gather",
            Self::Ready => "ready",
            Self::Compute => "compute",
            Self::Offer => "offer",
            Self::Round1 => "round1",
            Self::Round2 => "round2",
            Self::Update => "update",
            Self::UpdateShare => "share",
            Self::Meet => "meet",
            Self::Complete => "complet",
            Self::Validate => "valid",
            Self::Save => "save",
            Self::Finished => "stopped",
            Self::Broken => "broken",
            Self::BeforeRename => "manif<",
            Self::AfterRename => "manif>",
            Self::Recovery => "recov",
            Self::Admission => "admit",
            Self::Nobody => "nobody",
        }
    }
}
