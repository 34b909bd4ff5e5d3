"""`primus pipeline`: tables, pictures and comparisons on the command line."""


def test_show_prints_rows_and_figures(primus):
    outcome = primus("pipeline", "show", "zbv-formatted", "--pp", "2", "-m", "4")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith("rank 0: F0.0 F1.0 F2.0 F0.1 B0.1 W0.1")
    assert (
        lines[2] == "zbv-formatted: 12.5 units of time, 4.0 % bubble, waits by rank 0, 0, activations by rank 2, 2 microbatches"
    )


def test_plot_draws_and_refuses_other_files(primus, folder):
    assert primus("pipeline", "plot", "1f1b", "-o", "step.svg", "--pp", "2", "-m", "2").code == 0
    assert "<svg" in (folder / "step.svg").read_text()
    refused = primus("pipeline", "plot", "1f1b", "-o", "step.txt")
    assert (refused.code, "ends with .svg" in refused.err) == (2, True)
    nowhere = primus("pipeline", "plot", "1f1b", "-o", "nowhere/step.svg")
    assert (nowhere.code, "cannot be written" in nowhere.err) == (2, True)


def test_compare_lists_what_fits_and_says_what_does_not(primus):
    outcome = primus("pipeline", "compare", "--pp", "4", "-m", "5")
    assert outcome.code == 0
    assert "v-half" in outcome.out
    assert "zbv-formatted" in outcome.out
    assert "1f1b-interleaved" not in outcome.out
    assert "groups of 4 leave 1 of 5" in outcome.err


def test_costs_that_are_no_times_are_refused(primus):
    for words in (("--cost-f", "0", "--cost-b", "0", "--cost-w", "0"), ("--cost-f", "inf"), ("--max-mem", "nan")):
        outcome = primus("pipeline", "show", "1f1b", "--pp", "2", "-m", "2", *words)
        assert (outcome.code, "Traceback" in outcome.err) == (2, False)
        assert words[0] in outcome.err or "costs must be finite" in outcome.err


def test_an_unknown_schedule_ends_with_code_2(primus):
    outcome = primus("pipeline", "show", "2f2b")
    assert (outcome.code, "there are 1f1b, 1f1b-interleaved" in outcome.err) == (2, True)


def test_groups_have_a_size(primus):
    small, whole = (primus("pipeline", "show", "group-interleaved", "--group-size", size).out for size in ("1", "4"))
    assert "activations by rank 3.5, 3, 2.5, 2 microbatches" in small
    assert "activations by rank 4, 3.5, 3, 2.5 microbatches" in whole
    assert primus("pipeline", "show", "group-interleaved", "--group-size", "0").code == 2


def test_show_and_compare_count_time_alike(primus):
    """Costs are those of a rank's whole work on a microbatch, however a schedule cuts it."""
    compared = primus("pipeline", "compare", "--pp", "4", "-m", "8", "--cost-w", "0.5").out
    for algorithm in ("1f1b", "1f1b-interleaved", "zbv-formatted"):
        shown = primus("pipeline", "show", algorithm, "--pp", "4", "-m", "8", "--cost-w", "0.5").out
        time = shown.splitlines()[-1].split()[1]
        (row,) = [line for line in compared.splitlines() if f" {algorithm} " in line]
        assert row.split("│")[3].strip() == time
    whole, sliced = (primus("pipeline", "show", "1f1b", "--pp", "1", "--slices", n).out for n in ("1", "2"))
    assert "1f1b: 24 units of time" in whole
    assert "seq1f1b: 24 units of time" in sliced


def test_help_lists_the_shared_options(primus):
    for verb in ("show", "plot", "compare"):
        assert "--cost-comm" in primus("pipeline", verb, "--help").out
    assert "--vp" not in primus("pipeline", "compare", "--help").out


def test_slices_divide_bubble_and_activations(primus):
    out = primus("pipeline", "compare", "--pp", "4", "-m", "8", "--slices", "4").out
    rows = {cells[0].strip(): cells[3:5] for line in out.splitlines() if len(cells := line.strip("│").split("│")) > 3}
    whole, sliced = ([float(cell) for cell in rows[name]] for name in ("1f1b", "seq1f1b, 4 slices"))
    assert whole == [27.3, 4.0]
    assert sliced == [8.6, 1.75]


def test_slices_are_drawn(primus, folder):
    assert primus("pipeline", "plot", "1f1b", "--slices", "2", "-o", "step.svg", "--pp", "2", "-m", "2").code == 0
    assert primus("pipeline", "show", "1f1b", "--slices", "2", "--pp", "2", "-m", "2").out.startswith(
        "rank 0: F0/0 F0/1 F1/0 B0/1"
    )


def test_offloaded_activations_are_shown_drawn_and_compared(primus, folder):
    shown = primus("pipeline", "show", "v-half", "--offload", "1").out.splitlines()
    assert shown[0].startswith("rank 0: F0.0 F1.0 O0.0 F2.0 O1.0")
    assert shown[-1].endswith("activations by rank 1.5, 1.5, 2, 2.5 microbatches, on the host 2.5, 2, 1.5, 1.5")
    assert primus("pipeline", "plot", "v-half", "--offload", "1", "-o", "step.svg").code == 0
    assert "comes back" in (folder / "step.svg").read_text().replace("<!-- ", "").replace(" -->", "")
    out = primus("pipeline", "compare", "--pp", "4", "-m", "16", "--cost-copy", "0.3").out
    peaks = {cells[0].strip(): float(cells[4]) for line in out.splitlines() if len(cells := line.strip("│").split("│")) > 4}
    for algorithm in ("zbv-formatted", "v-half", "v-min", "group-interleaved"):
        assert peaks[f"{algorithm}, offloaded"] < peaks[algorithm]


def test_slow_copies_and_schedules_without_copies_are_refused(primus):
    slow = primus("pipeline", "show", "group-interleaved", "--pp", "8", "--offload", "2", "--cost-copy", "1.5")
    assert (slow.code, "copies to the host that take 0.5" in slow.err) == (2, True)
    wrong = primus("pipeline", "show", "1f1b", "--offload", "1")
    assert (wrong.code, "activations go to the host in zbv-formatted" in wrong.err) == (2, True)
