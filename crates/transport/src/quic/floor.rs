//! Congestion control for a cluster's own network: Cubic that never falls below a floor.
//!
//! Cubic takes each lost packet for a full queue. On a path that loses one packet in twenty for other reasons it falls to
//! two packets a round trip, and a step of a small model takes a minute. The floor is a fraction of what any path between
//! training hosts holds; above it this is Cubic. It does not know the path; the floor comes from [`super::Tuning`].

use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// Makes controllers with a floor.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloorConfig {
    /// *Units*: bytes in flight.
    pub least: u64,
}

impl ControllerFactory for FloorConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Arc::new(CubicConfig::default()).build(now, current_mtu);
        Box::new(Floor { least: self.least, cubic })
    }
}

struct Floor {
    least: u64,
    cubic: Box<dyn Controller>,
}

impl Controller for Floor {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.cubic.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window().max(self.least)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { least: self.least, cubic: self.cubic.clone_box() })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_bring_the_window_down_to_the_floor_and_no_further() {
        let now = Instant::now();
        let mut floored = Arc::new(FloorConfig { least: 100_000 }).build(now, 1_200);
        let mut plain = Arc::new(FloorConfig { least: 0 }).build(now, 1_200);
        for controller in [&mut floored, &mut plain] {
            for _ in 0..50 {
                controller.on_congestion_event(now, now, true, 1_200);
            }
        }
        assert_eq!(floored.window(), 100_000);
        assert!(plain.window() < 10_000, "{}", plain.window());
    }
}
