//! What supervisor and node send to each other where one process has both.

use dtrain_protocol::Message as Word;
use dtrain_types::MemberId;

/// To the supervisor: a word of a rank or a node.
pub struct Heard(pub Word);

/// To the supervisor: a rank's control link has ended.
pub struct LinkLost(pub MemberId);

/// To a node: a word of the supervisor, for the node itself or for one of its ranks.
pub struct Deliver(pub Word);
