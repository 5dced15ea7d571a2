//! Brightness, contrast, saturation and what else is done to the colours of a picture, in levels from 0 to 255.
//!
//! Planes of a clip's frames are taken together, so that all of them change alike. It does not know who asks.
//!
//! *Source*: the functions of the same names in torchvision.

use super::range::WHITE;

/// How much of a picture's own values is left; the rest is of what it is mixed with. Above 1 it goes away from that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factor(pub f32);

impl Factor {
    fn mix(self, own: f32, other: f32) -> f32 {
        (self.0 * own + (1.0 - self.0) * other).clamp(0.0, WHITE)
    }
}

/// How bright a colour is.
fn grey([red, green, blue]: [f32; 3]) -> f32 {
    0.2989 * red + 0.587 * green + 0.114 * blue
}

/// The three planes of a picture with colours; none if it has another number of channels.
fn colours(values: &mut [f32], channels: usize) -> Option<[&mut [f32]; 3]> {
    let plane = values.len() / 3;
    let (red, rest) = (channels == 3).then(|| values.split_at_mut(plane))?;
    let (green, blue) = rest.split_at_mut(plane);
    Some([red, green, blue])
}

/// Mixes with black.
pub(super) fn brightness(values: &mut [f32], factor: Factor) {
    values.iter_mut().for_each(|value| *value = factor.mix(*value, 0.0));
}

/// Mixes with the mean brightness.
pub(super) fn contrast(values: &mut [f32], channels: usize, factor: Factor) {
    // In f64 and one after the other, so that the order is one.
    let sum = match colours(values, channels) {
        Some([red, green, blue]) => {
            let pixels = red.iter().zip(green.iter()).zip(blue.iter());
            3.0 * pixels.map(|((red, green), blue)| f64::from(grey([*red, *green, *blue]))).sum::<f64>()
        }
        None => values.iter().map(|value| f64::from(*value)).sum(),
    };
    let mean = (sum / values.len().max(1) as f64) as f32;
    values.iter_mut().for_each(|value| *value = factor.mix(*value, mean));
}

/// Mixes each pixel with its brightness. A picture without colours stays as it is.
pub(super) fn saturation(values: &mut [f32], channels: usize, factor: Factor) {
    let Some([red, green, blue]) = colours(values, channels) else { return };
    for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
        let grey = grey([*red, *green, *blue]);
        for value in [red, green, blue] {
            *value = factor.mix(*value, grey);
        }
    }
}

/// Mixes one plane with a blurred one; its border stays as it is. `before` is room for the plane.
pub(super) fn sharpness(plane: &mut [f32], width: usize, factor: Factor, before: &mut Vec<f32>) {
    let height = plane.len() / width;
    if height < 3 || width < 3 {
        return;
    }
    before.clear();
    before.extend_from_slice(plane);
    for y in 1..height - 1 {
        for x in 1..width - 1 {
            let at = y * width + x;
            let row = |at: usize| before[at - 1] + before[at] + before[at + 1];
            // The middle counts five times, each of the eight around it once.
            let sum = row(at - width) + row(at) + row(at + width) + 4.0 * before[at];
            plane[at] = factor.mix(before[at], sum / 13.0);
        }
    }
}

/// The nearest whole level.
fn whole(level: f32) -> u8 {
    (level + 0.5) as u8
}

/// Keeps so many of the eight bits of a level.
pub(super) fn posterize(values: &mut [f32], bits: u32) {
    let mask = !(0xffu32 >> bits) as u8;
    values.iter_mut().for_each(|value| *value = f32::from(whole(*value) & mask));
}

/// Turns what is as bright as `threshold` into its negative.
pub(super) fn solarize(values: &mut [f32], threshold: f32) {
    values.iter_mut().filter(|value| **value >= threshold).for_each(|value| *value = WHITE - *value);
}

/// Makes the darkest level of a channel 0 and the brightest 255.
pub(super) fn autocontrast(channel: &mut [f32]) {
    let low = channel.iter().fold(WHITE, |low, value| low.min(*value));
    let high = channel.iter().fold(0.0f32, |high, value| high.max(*value));
    if high > low {
        let scale = WHITE / (high - low);
        channel.iter_mut().for_each(|value| *value = ((*value - low) * scale).clamp(0.0, WHITE));
    }
}

/// Makes all levels of a channel about as frequent.
pub(super) fn equalize(channel: &mut [f32]) {
    let mut counts = [0usize; 256];
    channel.iter().for_each(|value| counts[usize::from(whole(*value))] += 1);
    let last = counts.iter().rev().copied().find(|count| *count > 0).unwrap_or(0);
    let step = (channel.len() - last) / 255;
    if step == 0 {
        return;
    }
    let mut below = 0;
    let levels = counts.map(|count| {
        let level = ((below + step / 2) / step).min(255);
        below += count;
        level as f32
    });
    channel.iter_mut().for_each(|value| *value = levels[usize::from(whole(*value))]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dark red pixel and a bright one of one grey.
    const PIXELS: [f32; 6] = [100.0, 200.0, 0.0, 200.0, 0.0, 200.0];

    fn changed(change: impl Fn(&mut [f32])) -> Vec<f32> {
        let mut values = PIXELS.to_vec();
        change(&mut values);
        values
    }

    #[test]
    fn factors_go_from_the_other_picture_over_the_own_one_to_beyond() {
        assert_eq!(changed(|values| brightness(values, Factor(0.0))), [0.0; 6]);
        assert_eq!(changed(|values| brightness(values, Factor(1.5))), [150.0, 255.0, 0.0, 255.0, 0.0, 255.0]);
        for same in [brightness, |v: &mut [f32], f| contrast(v, 3, f), |v: &mut [f32], f| saturation(v, 3, f)]
        {
            assert_eq!(changed(|values| same(values, Factor(1.0))), PIXELS);
        }
        // The brightness of the first pixel is 29.89, that of the second 199.98.
        let mean = changed(|values| contrast(values, 3, Factor(0.0)));
        assert!(mean.iter().all(|value| (value - 114.935).abs() < 1e-3), "{mean:?}");
        let mean = changed(|values| contrast(values, 1, Factor(0.0)));
        assert!(mean.iter().all(|value| (value - 700.0 / 6.0).abs() < 1e-3), "{mean:?}");
        let grey = changed(|values| saturation(values, 3, Factor(0.0)));
        for (at, value) in grey.iter().enumerate() {
            assert!((value - [29.89, 199.98][at % 2]).abs() < 1e-3, "{grey:?}");
        }
        let strong = changed(|values| saturation(values, 3, Factor(2.0)));
        assert!((strong[0] - 170.11).abs() < 1e-3 && strong[2] == 0.0 && strong[4] == 0.0, "{strong:?}");
        assert_eq!(changed(|values| saturation(values, 2, Factor(0.0))), PIXELS, "there are no colours");
    }

    #[test]
    fn sharpness_blurs_inside_the_border() {
        let mut plane = [0.0; 16];
        plane[5] = 130.0;
        let mut blurred = plane;
        sharpness(&mut blurred, 4, Factor(0.0), &mut Vec::new());
        let mut expected = [0.0; 16];
        (expected[5], expected[6], expected[9], expected[10]) = (50.0, 10.0, 10.0, 10.0);
        assert_eq!(blurred, expected);
        sharpness(&mut plane, 4, Factor(1.5), &mut Vec::new());
        assert_eq!((plane[5], plane[6]), (170.0, 0.0));
        let mut small = [1.0, 2.0, 3.0, 4.0];
        sharpness(&mut small, 2, Factor(0.0), &mut Vec::new());
        assert_eq!(small, [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn levels_are_cut_turned_stretched_and_spread() {
        let levels = |change: fn(&mut [f32])| {
            let mut values = [10.0, 129.6, 200.0, 255.0];
            change(&mut values);
            values
        };
        assert_eq!(levels(|values| posterize(values, 8)), [10.0, 130.0, 200.0, 255.0]);
        assert_eq!(levels(|values| posterize(values, 4)), [0.0, 128.0, 192.0, 240.0]);
        assert_eq!(levels(|values| solarize(values, 200.0)), [10.0, 129.6, 55.0, 0.0]);
        let stretched = levels(|values| autocontrast(&mut values[..3]));
        assert_eq!((stretched[0], stretched[2], stretched[3]), (0.0, 255.0, 255.0));
        let mut flat = [7.0; 3];
        autocontrast(&mut flat);
        assert_eq!(flat, [7.0; 3]);
        assert_eq!(levels(equalize), [10.0, 129.6, 200.0, 255.0], "too few pixels to spread");
        // As torchvision: four levels of 256 pixels each, in steps of (1024 - 256) / 255.
        let mut many: Vec<f32> = (0..1024).map(|at| (100 + at / 256) as f32).collect();
        equalize(&mut many);
        assert_eq!([many[0], many[256], many[512], many[768]], [0.0, 85.0, 171.0, 255.0]);
    }
}
