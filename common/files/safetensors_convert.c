#include "files/safetensors.h"

#include "base/status.h"

#include <string.h>

static float convert_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16, subnormals and NaN payloads kept. */
static float convert_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (exponent == 0x1f)
        return convert_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    return convert_from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

int safetensors_to_f32(const struct safetensors_tensor *tensor, float *out)
{
    const char *data = tensor->data;
    uint16_t half;
    double wide;
    switch (tensor->dtype) {
    case SAFETENSORS_F32:
        if (tensor->bytes)
            memcpy(out, data, tensor->bytes);
        return STATUS_OK;
    case SAFETENSORS_F16:
        for (int64_t i = 0; i < tensor->count; i++) {
            memcpy(&half, data + 2 * i, sizeof half);
            out[i] = convert_half(half);
        }
        return STATUS_OK;
    case SAFETENSORS_BF16:
        for (int64_t i = 0; i < tensor->count; i++) {
            memcpy(&half, data + 2 * i, sizeof half);
            out[i] = convert_from_bits((uint32_t)half << 16);
        }
        return STATUS_OK;
    case SAFETENSORS_F64:
        for (int64_t i = 0; i < tensor->count; i++) {
            memcpy(&wide, data + 8 * i, sizeof wide);
            out[i] = (float)wide;
        }
        return STATUS_OK;
    default:
        return STATUS_INVALID;
    }
}
