//! Formats numbers with about three digits and a unit.

use forebay_types::Bytes;

/// A number of bytes: see [`Bytes`].
pub fn bytes(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// A count: `950`, `1.2 k`, `3.4 M`, `12 G`.
pub fn count(count: u64) -> String {
    const UNITS: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 {
        value /= 1000.0;
        unit += 1;
    }
    format!("{}{}", short(value, unit > 0), UNITS[unit])
}

/// A ratio in percent: `87.5 %`; a dash for `None`.
pub fn percent(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) => format!("{:.1} %", ratio * 100.0),
        None => "-".into(),
    }
}

/// A time: `42 s`, `5 min`, `2 h 7 min`, `3 d 4 h`.
pub fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Parses a whole number with the unit `s`, `m`, `h` or `d`, to seconds.
pub fn seconds_with_unit(text: &str) -> Option<u64> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    units.into_iter().find_map(|(unit, seconds)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds)
    })
}

/// A latency: `850 us`, `4.2 ms`, `1.5 s`.
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", short(us as f64 / 1e3, true)),
        _ => format!("{} s", short(us as f64 / 1e6, true)),
    }
}

/// A measured latency: `4.2 us`, `42 us`, `4.2 ms`, `1.5 s`.
pub fn latency_us(us: f64) -> String {
    match us {
        ..999.5 => format!("{} us", short(us, true)),
        ..999_500.0 => format!("{} ms", short(us / 1e3, true)),
        _ => format!("{} s", short(us / 1e6, true)),
    }
}

/// A rate per second: `0.5`, `12`, `1.2 k`.
pub fn rate(per_second: f64) -> String {
    if per_second < 9.95 {
        short(per_second, per_second > 0.0)
    } else {
        count(per_second.round() as u64)
    }
}

/// Numbers for cells of tables, in at most five columns.
pub mod compact {
    use super::{bytes as long_bytes, count as long_count, latency_us};

    /// A number of bytes in binary units: `512`, `1.5K`, `128G`.
    pub fn bytes(bytes: u64) -> String {
        long_bytes(bytes).replace([' ', 'i', 'B'], "")
    }

    /// A count: `950`, `1.2k`, `12G`.
    pub fn count(count: u64) -> String {
        long_count(count).replace(' ', "")
    }

    /// A rate per second: `0.5`, `12`, `1.2k`.
    pub fn rate(per_second: f64) -> String {
        super::rate(per_second).replace(' ', "")
    }

    /// A measured latency: `42us`, `4.2ms`, `1.5s`; a dash for `None`.
    pub fn latency(us: Option<f64>) -> String {
        match us {
            None => "-".to_owned(),
            Some(us) if us >= 999.5e6 => ">999s".to_owned(),
            Some(us) => latency_us(us.max(0.0)).replace(' ', ""),
        }
    }

    /// A ratio in percent: `87.5`, `100.0`; a dash for `None`.
    pub fn percent(ratio: Option<f64>) -> String {
        let percent = ratio.map(|ratio| (ratio * 100.0).clamp(0.0, 100.0));
        percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}"))
    }
}

/// Rounds to one decimal below ten if the value has a fraction, otherwise to an integer.
fn short(value: f64, has_fraction: bool) -> String {
    if has_fraction && value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_four_digits() {
        for (value, text) in
            [(0, "0"), (999, "999"), (1000, "1.0 k"), (999_949, "1.0 M"), (u64::MAX, "18 E")]
        {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn cells_of_tables_have_at_most_five_columns() {
        for (value, text) in
            [(0, "0"), (512, "512"), (1023, "1023"), (1 << 40, "1.0T"), (u64::MAX, "16E")]
        {
            assert_eq!(compact::bytes(value), text);
        }
        assert_eq!(compact::bytes((1 << 40) - (1 << 30)), "1023G");
        assert_eq!(compact::count(u64::MAX), "18E");
        for (per_second, text) in [(0.0, "0"), (0.5, "0.5"), (9.96, "10"), (1234.0, "1.2k")] {
            assert_eq!(compact::rate(per_second), text);
        }
        assert_eq!(compact::rate(f64::MAX), "18E");
        for (us, text) in [
            (None, "-"),
            (Some(4.24), "4.2us"),
            (Some(999_500.0), "1.0s"),
            (Some(998e6), "998s"),
            (Some(f64::MAX), ">999s"),
        ] {
            assert_eq!(compact::latency(us), text);
        }
        for (ratio, text) in
            [(None, "-"), (Some(0.0), "0.0"), (Some(0.0954), "9.5"), (Some(2.0), "100.0")]
        {
            assert_eq!(compact::percent(ratio), text);
        }
    }

    #[test]
    fn latencies_change_their_unit_where_they_round_to_it() {
        for (us, text) in [
            (0.0, "0.0 us"),
            (4.24, "4.2 us"),
            (999.4, "999 us"),
            (999.5, "1.0 ms"),
            (42_000.0, "42 ms"),
            (999_500.0, "1.0 s"),
            (61e6, "61 s"),
        ] {
            assert_eq!(latency_us(us), text);
        }
    }

    #[test]
    fn parts_and_times_are_short() {
        assert_eq!(percent(Some(0.875)), "87.5 %");
        assert_eq!(percent(None), "-");
        for (seconds, text) in
            [(59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (86_400, "1 d 0 h")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
