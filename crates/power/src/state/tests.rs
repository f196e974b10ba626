//! The table of states.

use super::*;

fn reading(text: &str) -> UpsReading {
    UpsReading::from_lines(text).unwrap()
}

fn with_status(status: &str) -> PowerState {
    let text = format!("ups.status: {status}\nbattery.charge: 100\nbattery.runtime: 1800");
    evaluate(&reading(&text), &Rules::default())
}

fn with(values: &str) -> PowerState {
    evaluate(&reading(&values.replace(", ", "\n")), &Rules::default())
}

#[test]
fn only_mains_power_with_harmless_flags_is_safe() {
    for status in ["OL", "OL CHRG", "CHRG OL", "OL TRIM", "OL BOOST", "OL ECO", "OL HB"] {
        assert_eq!(with_status(status), PowerState::Safe, "{status}");
    }
}

#[test]
fn states_of_status_flags() {
    for (status, word) in [
        ("OL RB", "not-ready"),
        ("OL LB", "not-ready"),
        ("OL BYPASS", "not-ready"),
        ("BYPASS", "not-ready"),
        ("OL OFF", "not-ready"),
        ("OFF", "not-ready"),
        ("OL CAL", "not-ready"),
        ("OL OVER", "not-ready"),
        ("OL ALARM", "not-ready"),
        ("OL DISCHRG", "not-ready"),
        ("OB", "on-battery"),
        ("OB DISCHRG", "on-battery"),
        ("CAL OB DISCHRG", "on-battery"),
        ("OB CAL LB", "on-battery"),
        ("LB DISCHRG CAL OB", "on-battery"),
        ("CAL LB", "on-battery"),
        ("CAL", "on-battery"),
        ("OL OB CAL LB", "on-battery"),
        ("OL CAL LB", "not-ready"),
        ("FSD OB CAL LB", "critical"),
        ("WAIT OB CAL", "unknown"),
        ("OB TEST LB", "critical"),
        ("OB DISCHRG LB", "critical"),
        ("OL OB LB", "critical"),
        ("LB", "critical"),
        ("FSD OL", "critical"),
        ("FSD OB LB", "critical"),
        ("OL OB", "unknown"),
        ("WAIT", "unknown"),
        ("OL WAIT", "unknown"),
        ("", "unknown"),
        ("RB", "unknown"),
        ("ol", "unknown"),
        ("OLD", "unknown"),
    ] {
        assert_eq!(with_status(status).as_str(), word, "{status}");
        assert!(!with_status(status).to_string().is_empty());
    }
}

#[test]
fn states_of_values() {
    let ol = "ups.status: OL";
    for (values, word, part) in [
        ("battery.charge: 79, battery.runtime: 600", "safe", "protected"),
        ("battery.charge: 78.9, battery.runtime: 600", "not-ready", "charged to 78.9 %"),
        ("battery.charge: 99, battery.runtime: 75", "not-ready", "runtime of 75 s"),
        ("battery.charge: 99, battery.runtime: 76", "safe", ""),
        ("battery.charge: 99", "unknown", "does not report battery.runtime"),
        ("battery.runtime: 600", "unknown", "does not report battery.charge"),
        ("battery.charge: abc, battery.runtime: 600", "unknown", "'abc'"),
        ("battery.charge: 99, battery.runtime: -1", "unknown", "'-1'"),
        ("battery.charge: 99, battery.runtime: 600, ups.load: nan", "unknown", "ups.load"),
        ("battery.charge: 99, battery.runtime: 600, ups.load: 101", "not-ready", "overloaded"),
        ("battery.charge: 99, battery.runtime: 600, ups.load: 100", "safe", ""),
        ("battery.charge: 99, battery.runtime: 99, battery.runtime.low: 99", "not-ready", "low"),
        ("battery.charge: 99, battery.runtime: 99, ups.alarm: fan", "not-ready", "alarm: fan"),
    ] {
        let verdict = with(&format!("{ol}, {values}"));
        assert_eq!(verdict.as_str(), word, "{values}: {verdict}");
        assert!(verdict.to_string().contains(part), "{values}: {verdict}");
    }
    assert_eq!(with("battery.charge: 99").as_str(), "unknown");
}

#[test]
fn low_values_on_battery_are_critical_without_lb() {
    for (values, word) in [
        ("battery.charge: 10, battery.runtime: 600", "on-battery"),
        ("battery.charge: 20, battery.charge.low: 20, battery.runtime: 600", "critical"),
        ("battery.charge: 99, battery.runtime: 60, battery.runtime.low: 120", "critical"),
        ("battery.runtime: 600", "on-battery"),
        ("battery.charge: 99", "unknown"),
        ("battery.charge: 99, battery.runtime: x", "unknown"),
    ] {
        assert_eq!(with(&format!("ups.status: OB, {values}")).as_str(), word, "{values}");
    }
    // A calibration discharges the battery below these thresholds.
    for low in ["battery.charge: 9, battery.charge.low: 20", "battery.runtime.low: 700"] {
        let values = format!("ups.status: OB CAL LB, {low}, battery.runtime: 600");
        assert_eq!(with(&values).as_str(), "on-battery", "{low}");
    }
    let left = with("ups.status: OB, battery.runtime: 600");
    assert_eq!(left, PowerState::OnBattery { left_seconds: 480 }, "80 % are trusted");
}
