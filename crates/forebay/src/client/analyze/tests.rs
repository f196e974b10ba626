//! Tests of the reports, over a synthetic analysis.

use super::*;
use forebay_api::{
    Analysis, AnalysisBatch, AnalysisInterruption, AnalysisPhase, AnalysisStatus, AnalysisVolume,
    LatencySummary, SizeTimes,
};

/// Names may have any characters.
const NAME: &str = "=<b>&\"x";

/// An analysis of 12 intervals in each phase, in which served reads take 1 ms and others `held_ms`.
fn analysis(held_ms: f64) -> Analysis {
    let times = |requests: u64, ms: f64| {
        vec![SizeTimes { up_to_bytes: 4096, requests, seconds: requests as f64 * ms / 1000.0 }]
    };
    let mut batches = Vec::new();
    for phase in AnalysisPhase::ALL {
        for at in 0..12_u64 {
            let is_measured = phase == AnalysisPhase::Measure;
            let (served, held) = if is_measured { (0, 1000) } else { (990 + at, 10 + at % 3) };
            let mean_ms = if is_measured { held_ms } else { 1.0 };
            let reads = served + held;
            let read_latency = LatencySummary {
                count: reads,
                mean_us: mean_ms * 1000.0,
                p99_us: mean_ms * 3000.0,
                ..LatencySummary::default()
            };
            let volume = AnalysisVolume {
                name: NAME.into(),
                served_reads: times(served, 1.0),
                held_reads: times(held, held_ms * (1.0 + 0.01 * (at % 4) as f64)),
                reads,
                read_bytes: reads * 4096,
                read_hits: served,
                read_latency,
                disk_reads: held,
                disk_read_bytes: held * 4096,
                ..AnalysisVolume::default()
            };
            batches.push(AnalysisBatch {
                phase,
                begun_at: format!("2026-02-28T13:{at:02}:00Z"),
                seconds: 60.0,
                cpu_seconds: 6.0,
                volumes: vec![volume],
            });
        }
    }
    let status = AnalysisStatus {
        state: AnalysisState::Complete,
        begun_at: "2026-02-28T13:00:00Z".into(),
        ended_at: Some("2026-02-28T13:36:00Z".into()),
        analyzed_seconds: 36.0 * 60.0,
        batches: 36,
        ..AnalysisStatus::default()
    };
    Analysis { status, batches }
}

#[test]
fn the_summary_says_how_many_times_faster_and_how_sure_that_is() {
    let text = text::summary(&AnalysisReport::of(analysis(8.0)));
    let expected = format!("volume '{NAME}': 8.12 times faster (95 % interval 8.0");
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains("mean 1.00 ms with the cache, 8.12 ms without"), "{text}");
    assert!(text.contains("100 % comparable"), "{text}");
    assert!(text.contains("of the reads were hits"), "{text}");
    assert!(!text.contains("writes:"), "there are none: {text}");
    assert!(text.contains("compared with the phase 'measure': 8.1"), "{text}");
}

#[test]
fn no_measurable_benefit_and_slower_are_verdicts() {
    let none = text::summary(&AnalysisReport::of(analysis(1.0)));
    assert!(none.contains("': no measurable benefit (1.0"), "{none}");
    let slower = text::summary(&AnalysisReport::of(analysis(0.25)));
    assert!(slower.contains("': 3.9") && slower.contains(" times slower (95 %"), "{slower}");
    assert!(slower.contains("slower than without the cache"), "{slower}");
}

#[test]
fn an_analysis_that_is_not_complete_says_so_everywhere() {
    let mut part = analysis(8.0);
    part.batches.truncate(27);
    part.status.state = AnalysisState::Stopped;
    part.status.interruptions = vec![AnalysisInterruption {
        resumed_at: "2026-02-28T15:00:00Z".into(),
        phase: AnalysisPhase::Learn,
    }];
    let report = AnalysisReport::of(part);
    let (text, page) = (text::summary(&report), html::page(&report));
    for shown in [&text, &page] {
        assert!(shown.contains("stopped before its end"), "{shown}");
        assert!(shown.contains("interrupted in the phase 'learn'"), "{shown}");
        assert!(shown.contains("too little data for a verdict"), "three intervals: {shown}");
    }
    let mut none = analysis(8.0);
    none.batches.clear();
    none.status.state = AnalysisState::Running;
    let report = AnalysisReport::of(none);
    assert!(text::summary(&report).contains("no interval is complete yet"));
    assert!(html::page(&report).contains("No interval is complete yet"));
    assert_eq!(csv::table(&report).lines().count(), 1);
}

#[test]
fn the_page_loads_nothing_and_escapes_names() {
    let page = html::page(&AnalysisReport::of(analysis(8.0)));
    for foreign in ["<script", "src=", "href=", "url(", "@import", "http:", "https:"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("Volume =&lt;b&gt;&amp;&quot;x") && !page.contains("<b>&"), "{page}");
    assert_eq!(page.matches("<svg").count(), 9);
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (9, 9));
    assert!(page.contains("8.12 times faster") && page.contains("@media print"));
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    let missing = page.lines().filter(|line| line.contains("<path d=\"\"")).count();
    assert_eq!(missing, 1, "only writes have no line");
}

#[test]
fn the_table_and_the_document_have_every_interval() {
    let report = AnalysisReport::of(analysis(8.0));
    let table = csv::table(&report);
    let columns: Vec<usize> = table.lines().map(|line| line.matches(',').count()).collect();
    assert_eq!(columns, [columns[0]; 37]);
    assert!(
        table.contains("\"'=<b>&\"\"x\",measure,2026-02-28T13:00:00Z,60.000,1000,0"),
        "{table}"
    );
    let document: serde_json::Value = serde_json::from_str(&json::document(&report)).unwrap();
    assert_eq!(document["batches"].as_array().unwrap().len(), 36);
    let volume = &document["volumes"][0];
    assert_eq!(volume["all"]["kind"], "faster");
    assert_eq!(volume["writes"]["kind"], "too-little-data");
    let low = volume["all"]["times_faster"]["low_95"].as_f64().unwrap();
    assert!((7.5..8.2).contains(&low), "{volume}");
}

/// The server counts no held-out writes of a volume with a journal, for example.
#[test]
fn writes_that_are_not_compared_are_no_lack_of_data() {
    let mut analysis = analysis(8.0);
    let mut with_writes = |requests: u64| {
        for batch in &mut analysis.batches {
            batch.volumes[0].served_writes =
                vec![SizeTimes { up_to_bytes: 4096, requests, seconds: 1.0 }];
        }
        AnalysisReport::of(analysis.clone())
    };
    // Of 12 intervals with 100 writes, one percent would be 12 held-out ones.
    let few = text::summary(&with_writes(100));
    assert!(few.contains("writes: too little data"), "{few}");
    let report = with_writes(1000);
    let text = text::summary(&report);
    assert!(text.contains("writes: not compared: a journal, a UPS or their order"), "{text}");
    assert!(html::page(&report).contains("not compared: a journal"));
    assert!(json::document(&report).contains("\"not-compared\""));
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_former_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.html");
    write(&path, "first").unwrap();
    std::fs::create_dir(directory.path().join("report.html.new")).unwrap();
    assert!(write(&path, "second").is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
    std::fs::remove_dir(directory.path().join("report.html.new")).unwrap();
    write(&path, "second").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn lengths_have_units() {
    for (text, seconds) in [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86_400)] {
        assert_eq!(length(text), Ok(seconds));
    }
    for wrong in ["", "d", "10", "1w", "-1s", "1.5h", "99999999999999999999d", "1ü"] {
        assert!(length(wrong).unwrap_err().contains("as in 10m"), "{wrong}");
    }
    let shown = [5.0, 65.0, 3_660.0, 90_000.0, -1.0].map(span);
    assert_eq!(shown, ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h", "0 s"]);
}
