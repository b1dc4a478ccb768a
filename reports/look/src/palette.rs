//! One colour and one pattern a cause, everywhere.
//!
//! The colours are readable on white and on black and stay apart for the colour-blind; where there are none, the
//! patterns do the same.

use stallscope_model::Cause;

/// The colour of a cause where there are millions: red, green, blue.
pub const fn rgb(cause: Cause) -> (u8, u8, u8) {
    match cause {
        Cause::Compute => (14, 112, 105),
        Cause::Fetch => (244, 80, 45),
        Cause::Prep => (156, 98, 0),
        Cause::Starved => (225, 40, 178),
        Cause::Transfer => (10, 148, 238),
        Cause::Preempted => (150, 90, 200),
        Cause::Snapshot => (125, 140, 235),
        Cause::Persist => (95, 86, 208),
        Cause::Peer => (125, 125, 125),
        Cause::Unknown => (150, 140, 120),
    }
}

/// The colour of a cause among the terminal's 16: 0 to 7, and 8 to 15 for the bright ones.
pub const fn index(cause: Cause) -> u8 {
    match cause {
        Cause::Compute => 2,
        Cause::Fetch => 1,
        Cause::Prep => 3,
        Cause::Starved => 13,
        Cause::Transfer => 6,
        Cause::Preempted => 5,
        Cause::Snapshot => 12,
        Cause::Persist => 4,
        Cause::Peer | Cause::Unknown => 8,
    }
}

/// What a cause's part of a bar is made of where there is no colour.
pub const fn pattern(cause: Cause, unicode: bool) -> char {
    let unicode_patterns = ['░', '█', '▓', '▞', '▒', '▚', '▤', '▥', '┄', '?'];
    let ascii_patterns = ['.', '#', '%', '!', '>', '^', 's', 'w', '-', '?'];
    if unicode { unicode_patterns[cause as usize] } else { ascii_patterns[cause as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linear light of one channel.
    fn linear(channel: u8) -> f64 {
        let share = f64::from(channel) / 255.0;
        if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
    }

    fn light((red, green, blue): (u8, u8, u8)) -> [f64; 3] {
        [linear(red), linear(green), linear(blue)]
    }

    #[test]
    fn colours_are_readable_on_white_and_on_black() {
        for cause in Cause::ALL {
            let [red, green, blue] = light(rgb(cause));
            let luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
            // Three to one is what graphics need by WCAG 2.
            assert!(1.05 / (luminance + 0.05) >= 3.0, "{} is too light for white", cause.name());
            assert!((luminance + 0.05) / 0.05 >= 3.0, "{} is too dark for black", cause.name());
        }
    }

    /// Matrices of Machado, Oliveira and Fernandes (2009) for full protanopia, deuteranopia and tritanopia.
    const BLINDNESS: [[[f64; 3]; 3]; 3] = [
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ];

    #[test]
    fn the_commonest_causes_stay_apart_for_the_colour_blind() {
        let common =
            [Cause::Compute, Cause::Fetch, Cause::Prep, Cause::Starved, Cause::Transfer, Cause::Persist];
        for matrix in BLINDNESS {
            let seen = |cause: Cause| {
                let light = light(rgb(cause));
                matrix.map(|row| {
                    row.iter().zip(light).map(|(weight, light)| weight * light).sum::<f64>().max(0.0).cbrt()
                })
            };
            for (place, one) in common.into_iter().enumerate() {
                for other in common.into_iter().skip(place + 1) {
                    let apart: f64 = seen(one).iter().zip(seen(other)).map(|(a, b)| (a - b).powi(2)).sum();
                    assert!(apart.sqrt() > 0.1, "{} and {}: {:.3}", one.name(), other.name(), apart.sqrt());
                }
            }
        }
    }

    #[test]
    fn patterns_are_one_column_and_all_different() {
        for unicode in [true, false] {
            let patterns = Cause::ALL.map(|cause| pattern(cause, unicode));
            for (place, one) in patterns.into_iter().enumerate() {
                assert!(!patterns[place + 1..].contains(&one));
                assert!(unicode || one.is_ascii());
            }
        }
    }
}
