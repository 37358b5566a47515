"""``python -m atlas inspect``: what is read of a listing, and what is said of a config on any GPU."""

import json

import pytest
from atlas import cli
from atlas.compilation.inspection import unified
from atlas.compilation.listings import accesses, matrix_instructions


def test_accesses_are_counted_by_width_and_direction():
    text = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 16 ];
    st.global.b16 [%rd1], %rs1;
    ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];
    cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, 0x10;
    """
    assert accesses(text) == {"copy 128": 1, "load 128": 2, "store 16": 1}
    amd = "global_load_dwordx4 v[0:3], v4, s[0:1]\nbuffer_store_short v1, v2, s[0:3], 0 offen"
    assert accesses(amd) == {"load 128": 1, "store 16": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {…}", {"wgmma m64n128k16 f32.bf16.bf16": 1}),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {…}\n" * 2, {"mma m16n8k16 f32.f16.f16.f32": 2}),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {…}", {"mma m16n8k8 f32.tf32.tf32.f32": 1}),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {…}", {"mma m16n8k32 f32.e4m3.e5m2.f32": 1}),
        ("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], 0", {"v_mfma_f32_32x32x8_f16": 1}),
        ("wgmma.fence.sync.aligned; fma.rn.f32 %f1, %f2, %f3, %f4;", {}),  # neither multiplies matrices
    ],
)
def test_matrix_instructions_are_named_with_shape_and_types(text, found):
    assert matrix_instructions(text) == found


def test_equal_texts_have_no_difference():
    assert unified("a\nb\n", "a\nb\n", ("one", "other")) == ""
    assert "-b\n+c" in unified("a\nb\n", "a\nc\n", ("one", "other"))


def inspect(*words):
    return cli.main(["inspect", *words])


VECTOR_ADD = ("vector_add", "--dtype", "fp32", "--case", "n=4096", "--variant", "blocks")


def test_facts_of_a_gpu_that_is_elsewhere_are_told(capsys):
    assert inspect(*VECTOR_ADD, "--gpu", "h200") == 0
    shown = capsys.readouterr().out
    assert "vector_add forward n=4096 fp32 on h200 (sm_90, Triton 3" in shown
    for fact in ("registers", "spill bytes", "occupancy", "x load 128", "x store 128"):
        assert fact in shown


def test_a_listing_is_printed_alone_so_that_it_can_be_piped(capsys):
    assert inspect(*VECTOR_ADD, "--gpu", "t4", "--asm", "ptx") == 0
    shown = capsys.readouterr().out
    assert ".target sm_75" in shown and "registers" not in shown and ".loc" not in shown
    assert inspect(*VECTOR_ADD, "--gpu", "t4", "--asm", "ttgir") == 0
    assert "loc(" not in capsys.readouterr().out, "positions name this checkout's files"


def test_a_text_that_there_is_not_is_a_mistake_and_never_printed(capsys):
    for words in (["--asm", "amdgcn"], ["--asm", "ptx", "--diff", "gpu=mi300x"]):
        assert inspect(*VECTOR_ADD, "--gpu", "t4", *words) == 2
        said = capsys.readouterr()
        assert not said.out and "it has none, for " in said.err


def test_a_difference_names_both_sides(capsys):
    assert inspect(*VECTOR_ADD, "--gpu", "h200", "--diff", "gpu=t4") == 0
    shown = capsys.readouterr().out
    assert "1: vector_add" in shown and "on t4 (sm_75, " in shown
    assert inspect(*VECTOR_ADD, "--gpu", "h200", "--asm", "ptx", "--diff", "gpu=t4") == 0
    assert "-.target sm_90a\n+.target sm_75" in capsys.readouterr().out


def test_both_sides_of_a_difference_are_of_one_case(capsys):
    assert inspect("vector_add", "--gpu", "h200", "--asm", "ttgir", "--diff", "gpu=t4") == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line[:3] in ("---", "+++")]
    assert all("forward n=268435456 bf16 on " in line for line in heads) and len(heads) == 2
    assert inspect("vector_add", "--gpu", "h200", "--diff", 'config={"BLOCK": 256, "num_warps": 4}') == 0
    assert ": blocks BLOCK=256 num_warps=4" in capsys.readouterr().out, "of the variant that a call runs"
    assert inspect(*VECTOR_ADD, "--gpu", "h200", "--asm", "ttir", "--diff", "gpu=h100") == 0
    assert capsys.readouterr().out == "// the same ttir on both sides\n"


def test_facts_and_text_are_written_for_another_interpreter(tmp_path, capsys):
    out = tmp_path / "facts.json"
    assert inspect(*VECTOR_ADD, "--gpu", "a100", "--asm", "llir", "--output", str(out)) == 0
    found = json.loads(out.read_text())
    assert found["status"] == "ok" and found["kernels"][0]["registers"] > 0
    assert "define" in found["texts"][0]["llir"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "cpu"], "is the interpreter, which compiles nothing"),
        (["--gpu", "h200", "--diff", "gpu=t4", "--output", "a.json"], "--output writes one side"),
        (["--gpu", "h200", "--diff", "colour=red"], "give WHAT=VALUE, of gpu"),
        (["--gpu", "h200", "--diff", "config=1"], "give an object"),
        (["--gpu", "h200", "--config", '{"BLOCK": 1}'], "blocks has"),
        (["--gpu", "h200", "--diff", "variant=none"], "--variant none: vector_add forward has blocks"),
        (["--gpu", "h200", "--diff", "python=/nowhere"], "--diff python=/nowhere: No such file"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(capsys, words, said):
    assert inspect(*VECTOR_ADD, *words) == 2
    assert said in capsys.readouterr().err
