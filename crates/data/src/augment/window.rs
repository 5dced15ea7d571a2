//! A part of a picture as it is, maybe mirrored.

/// The part of an image that is taken: output pixel `(y, x)` is input pixel `(top + y, left + x)`, mirrored within
/// the window if `flip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub top: isize,
    pub left: isize,
    pub flip: bool,
    pub height: usize,
    pub width: usize,
}

impl Window {
    /// One of these rows and columns in the middle of a picture of these sides.
    pub fn middle([height, width]: [usize; 2], [rows, columns]: [usize; 2]) -> Self {
        let (top, left) = (((height - rows) / 2) as isize, ((width - columns) / 2) as isize);
        Self { top, left, flip: false, height: rows, width: columns }
    }
}

/// Copies what a window shows of one channel; what lies outside of the image is a raw 0.
pub(crate) fn through_window<T: Copy + Default>(
    window: Window,
    image: &[T],
    width: usize,
    out: &mut [f32],
    scale: impl Fn(T) -> f32,
) {
    let outside = scale(T::default());
    let height = image.len() / width;
    // The columns of the window that lie inside the image, and where they begin there; the same for every row.
    let first = (-window.left).clamp(0, window.width as isize) as usize;
    let end = (width as isize - window.left).clamp(first as isize, window.width as isize) as usize;
    let from = (window.left + first as isize) as usize;
    for (y, out) in out.chunks_exact_mut(window.width).enumerate() {
        let Some(y) = usize::try_from(window.top + y as isize).ok().filter(|y| *y < height && first < end)
        else {
            out.fill(outside);
            continue;
        };
        let row = &image[y * width..][from..from + (end - first)];
        out[..first].fill(outside);
        out[end..].fill(outside);
        out[first..end].iter_mut().zip(row).for_each(|(out, value)| *out = scale(*value));
        if window.flip {
            out.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(window: Window) -> Vec<f32> {
        let image: Vec<u8> = (1..=9).collect();
        let mut out = vec![-1.0; window.height * window.width];
        through_window(window, &image, 3, &mut out, f32::from);
        out
    }

    #[test]
    fn a_window_shows_its_part_and_zeros_outside() {
        let whole = Window { top: 0, left: 0, flip: false, height: 3, width: 3 };
        assert_eq!(seen(whole), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(seen(Window { flip: true, ..whole }), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0]);
        assert_eq!(seen(Window { top: -1, left: 1, ..whole }), [0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 5.0, 6.0, 0.0]);
        assert_eq!(seen(Window { top: 1, left: 1, height: 2, width: 2, flip: true }), [6.0, 5.0, 9.0, 8.0]);
        assert_eq!(seen(Window { top: 2, left: -2, ..whole }), [0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(
            seen(Window { left: 1, flip: true, ..whole }),
            [0.0, 3.0, 2.0, 0.0, 6.0, 5.0, 0.0, 9.0, 8.0]
        );
        for (top, left) in [(0, 3), (0, -3), (3, 0), (-3, 0), (9, -9)] {
            assert_eq!(seen(Window { top, left, ..whole }), [0.0; 9], "a window beside the image");
        }
    }
}
