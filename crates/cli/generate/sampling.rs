//! Which token comes next, of what a model says of all of them: the surest one, or one that is drawn.

use crate::predict::greatest;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What outputs are divided by; 0 is the surest token each time.
    pub temperature: f64,
    /// Of so many of the surest.
    pub top_k: Option<usize>,
    /// Of so few of the surest as have this share of the probability together.
    pub top_p: Option<f64>,
}

/// A model has outputs that are no numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the outputs of the model are no numbers")]
pub struct NoNumbers;

impl Sampling {
    /// The token for a number drawn from 0 to below 1. `room` is memory to work with, which keeps nothing.
    ///
    /// *Errors*: there is no greatest output.
    pub fn choose(&self, outputs: &[f32], draw: f64, room: &mut Vec<(u32, f64)>) -> Result<u32, NoNumbers> {
        let best = greatest(outputs);
        if !outputs[best].is_finite() || outputs.iter().any(|output| output.is_nan()) {
            return Err(NoNumbers);
        }
        if self.temperature == 0.0 {
            return Ok(best as u32);
        }
        let most = f64::from(outputs[best]);
        let share = |output: f32| ((f64::from(output) - most) / self.temperature).exp();
        room.clear();
        room.extend((0..).zip(outputs).map(|(token, output)| (token, share(*output))));
        // Equal ones in the order of their ids: what is drawn depends on no sort.
        let surer = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if let Some(top_k) = self.top_k.filter(|top_k| *top_k < room.len()) {
            room.select_nth_unstable_by(top_k - 1, surer);
            room.truncate(top_k);
        }
        if self.top_k.is_some() || self.top_p.is_some() {
            room.sort_unstable_by(surer);
        }
        if let Some(top_p) = self.top_p {
            let enough = top_p * room.iter().map(|(_, share)| share).sum::<f64>();
            let mut sum = 0.0;
            let before = room.iter().take_while(|(_, share)| {
                let is_wanted = sum < enough;
                sum += share;
                is_wanted
            });
            let kept = before.count().max(1);
            room.truncate(kept);
        }
        let mut left = draw * room.iter().map(|(_, share)| share).sum::<f64>();
        for (token, share) in room.iter() {
            left -= share;
            if left < 0.0 {
                return Ok(*token);
            }
        }
        // Rounding may leave a rest: the last one that can be drawn at all.
        Ok(room.iter().rev().find(|(_, share)| *share > 0.0).map_or(best as u32, |(token, _)| *token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: None }
    }

    /// How often each token is drawn by a thousand numbers that lie evenly.
    fn drawn(how: Sampling, outputs: &[f32]) -> Vec<u32> {
        let mut counts = vec![0; outputs.len()];
        for place in 0..1_000 {
            let token = how.choose(outputs, (f64::from(place) + 0.5) / 1_000.0, &mut Vec::new()).unwrap();
            counts[token as usize] += 1;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_probable() {
        let outputs: Vec<f32> = [0.5f32, 0.125, 0.25, 0.125].iter().map(|share| share.ln() + 3.0).collect();
        assert_eq!(drawn(plain(), &outputs), [500, 125, 250, 125]);
        // Half the temperature squares the shares.
        assert_eq!(drawn(Sampling { temperature: 0.5, ..plain() }, &outputs), [727, 46, 182, 45]);
        assert_eq!(drawn(Sampling { top_k: Some(2), ..plain() }, &outputs), [667, 0, 333, 0]);
        assert_eq!(drawn(Sampling { top_k: Some(3), ..plain() }, &outputs), [571, 143, 286, 0]);
        assert_eq!(drawn(Sampling { top_p: Some(0.6), ..plain() }, &outputs), [667, 0, 333, 0]);
        assert_eq!(drawn(Sampling { top_p: Some(0.01), ..plain() }, &outputs), [1_000, 0, 0, 0]);
        assert_eq!(
            drawn(Sampling { top_p: Some(1.0), top_k: Some(9), ..plain() }, &outputs),
            [500, 125, 250, 125]
        );
        assert_eq!(drawn(Sampling { temperature: 0.0, ..plain() }, &outputs), [1_000, 0, 0, 0]);
        assert_eq!(drawn(Sampling { temperature: 1e-9, ..plain() }, &outputs), [1_000, 0, 0, 0]);
    }

    #[test]
    fn any_outputs_give_a_token_or_an_error() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, f32::MAX, f32::MIN, 1e-40];
        for outputs in odd.iter().flat_map(|one| odd.map(|other| [*one, other, 0.0])) {
            let is_fine = outputs.iter().all(|output| *output < f32::INFINITY);
            for how in
                [plain(), Sampling { temperature: 0.0, ..plain() }, Sampling { top_p: Some(0.5), ..plain() }]
            {
                for draw in [0.0, 0.999_999_999] {
                    let token = how.choose(&outputs, draw, &mut Vec::new());
                    assert_eq!(token.is_ok(), is_fine, "{outputs:?}");
                    assert!(
                        token.is_err() || outputs[token.unwrap() as usize] > f32::NEG_INFINITY,
                        "{outputs:?}"
                    );
                }
            }
        }
    }
}
