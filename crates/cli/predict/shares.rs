//! From the outputs of a classifier to probabilities.

/// The probabilities that outputs of a model are: their softmax.
pub fn probabilities(outputs: &[f32], into: &mut Vec<f64>) {
    let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    into.clear();
    into.extend(outputs.iter().map(|output| f64::from(output - most).exp()));
    let sum: f64 = into.iter().sum();
    into.iter_mut().for_each(|share| *share /= sum);
}

/// The first of the greatest.
#[must_use]
pub fn greatest(outputs: &[f32]) -> usize {
    let mut best = 0;
    for (class, output) in outputs.iter().enumerate() {
        if *output > outputs[best] {
            best = class;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_and_keep_their_order_however_large_the_outputs() {
        let mut shares = Vec::new();
        probabilities(&[1000.0, 1001.0, -1e30], &mut shares);
        assert!(
            (shares.iter().sum::<f64>() - 1.0).abs() < 1e-12 && shares[1] > shares[0] && shares[2] == 0.0
        );
        assert_eq!(greatest(&[0.5, 2.0, 2.0]), 1);
    }
}
